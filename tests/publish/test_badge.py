"""Badges: what stands on them, that it can be read, and that foreign text stays text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from specprof.analyse.results import Figure, StudyFigures
from specprof.errors import InputError
from specprof.publish.badge import badge, badge_name, meaning, text_width
from specprof.publish.fitness import SPECULATION, Fit, assess
from tests.publish.conftest import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"


def fit_of(study: StudyFigures, metric: str = SPECULATION, streams: int = 8) -> Fit:
    """The first fit gain of a study at some streams."""
    return next(
        fit for fit in assess(study).fit if fit.number.metric == metric and fit.number.cell.concurrency == streams
    )


def with_figure(fit: Fit, figure: Figure) -> Fit:
    return replace(fit, number=replace(fit.number, figure=figure))


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_badge_says_content_stop_rule_streams_gain_interval_and_word(study: StudyFigures) -> None:
    svg = badge(with_figure(fit_of(study, streams=1), Figure(1.41, 1.11, 1.80)), name_arm=False)
    assert texts(svg) == ["speculation · code · forced 128 · N=1", "1.41× [1.11, 1.80] faster · 2 launches"]


@pytest.mark.parametrize(
    ("launches", "said"), [(1, " · first look"), (2, " · 2 launches"), (3, " · 3 launches"), (4, "")]
)
def test_gain_of_fewer_than_four_launches_says_so_on_its_badge(study: StudyFigures, launches: int, said: str) -> None:
    """METHOD 5: at least 4 for a publishable ratio."""
    gains = tuple(replace(gain, num_blocks=launches) for gain in study.gains)
    fit = with_figure(fit_of(replace(study, gains=gains)), Figure(1.41, 1.11, 1.80))
    assert texts(badge(fit, name_arm=False))[1] == f"1.41× [1.11, 1.80] faster{said}"


def test_title_is_the_whole_context(study: StudyFigures) -> None:
    fit = fit_of(study)
    root = ET.fromstring(badge(fit, name_arm=False))
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == fit.context
    assert root.get("role") == "img"
    assert all(said in str(root.get("aria-label")) for said in texts(badge(fit, name_arm=False)))


def test_arms_are_named_where_there_are_several(study: StudyFigures) -> None:
    assert texts(badge(fit_of(study), name_arm=True))[0] == "speculation (ngram K=4) · code · forced 128 · N=8"
    batching = fit_of(study, "batching_gain")
    assert texts(badge(batching, name_arm=True))[0] == "batching (ngram K=4) · code · forced 128 · N=8"
    assert badge_name(batching) == "code/forced/on/8/batching"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.2, 1.4, "faster"),
        (1.004, 1.4, "undecided"),  # its lower end is printed as 1.00
        (0.9, 1.3, "undecided"),
        (0.96, 1.04, "no difference"),
        (0.7, 0.9, "slower"),
    ],
)
def test_word_follows_the_interval(low: float, high: float, word: str) -> None:
    assert meaning(Figure((low + high) / 2, low, high)) == word


def test_gain_without_an_interval_gets_no_badge(study: StudyFigures) -> None:
    with pytest.raises(InputError, match=r"without an interval gets no badge.*more prompts"):
        badge(with_figure(fit_of(study), Figure(1.41)), name_arm=False)


def test_hostile_text_stays_text(study: StudyFigures) -> None:
    fit = fit_of(study)
    cell = replace(fit.number.cell, tag=HOSTILE, method=HOSTILE)
    svg = badge(Fit(replace(fit.number, cell=cell), f"{HOSTILE}\n\x00"), name_arm=True)
    root = ET.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "rect", "g", "text"}
    assert "<script>alert('x')</script>" in texts(svg)[0]
    assert not any(char in svg for char in "\x1b\x00\u202e")


def test_text_is_as_wide_as_the_font_draws_it() -> None:
    """The widths are DejaVu Sans's own, which comes with matplotlib."""
    import matplotlib as mpl
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"))
    font.set_size(11, 72)
    for text in ("speculation · code · forced 80 · N=1", "1.41× [1.11, 1.80] faster", "batching · json · natural ≤256"):
        drawn = sum(font.load_char(ord(char)).linearHoriAdvance for char in text) / 65536
        assert text_width(text) == pytest.approx(drawn, rel=0.04), text


def test_chinese_is_a_square_a_character() -> None:
    assert text_width("散文") == 2 * 11


def test_parts_are_as_wide_as_their_texts(study: StudyFigures) -> None:
    root = ET.fromstring(badge(fit_of(study), name_arm=False))
    left, right = root.iter(f"{SVG}rect")
    said = list(root.iter(f"{SVG}text"))
    assert int(left.attrib["width"]) + int(right.attrib["width"]) == int(root.attrib["width"])
    for rect, text in zip((left, right), said, strict=True):
        begin, end = int(rect.get("x", "0")), int(rect.get("x", "0")) + int(rect.attrib["width"])
        assert begin < int(text.attrib["x"])
        assert int(text.attrib["x"]) + int(text.attrib["textLength"]) < end


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("figure", [(1.2, 1.4), (0.7, 0.9), (0.9, 1.3), (0.96, 1.04)])
def test_white_on_every_colour_can_be_read(study: StudyFigures, figure: tuple[float, float]) -> None:
    told = badge(with_figure(fit_of(study), Figure(sum(figure) / 2, *figure)), name_arm=False)
    for rect in ET.fromstring(told).iter(f"{SVG}rect"):
        assert 1.05 / (luminance(rect.attrib["fill"]) + 0.05) >= 4.5  # WCAG 2 AA
