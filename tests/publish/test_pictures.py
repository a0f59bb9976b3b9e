"""The pictures: drawn for what there is, and honest about letters no font can show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from specprof.analyse.results import StudyFigures
from specprof.publish.figures import draw
from specprof.publish.pictures import style


@pytest.fixture
def no_chinese_font(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with DejaVu alone."""
    monkeypatch.setattr(style, "_CHINESE_FONTS", ())
    style.font_families.cache_clear()
    style._drawable.cache_clear()
    yield
    style.font_families.cache_clear()
    style._drawable.cache_clear()


def test_each_kind_is_drawn_and_the_first_protocol_comes_first(small: StudyFigures) -> None:
    natural = tuple(replace(cell, protocol="natural", stop="natural", length=256) for cell in small.cells)
    pictures = draw(replace(small, cells=natural + small.cells, gains=small.gains))
    assert [picture.name for picture in pictures if picture.first] == [
        "decisions",
        "speculation-gain",
        "acceptance",
        "throughput",
        "gains",
        "wall",
    ]
    assert all("forced 128" in picture.context for picture in pictures if picture.first)
    others = [picture.name for picture in pictures if not picture.first]
    assert others == ["acceptance-natural", "throughput-natural", "wall-natural"]


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("no_chinese_font")
def test_without_a_chinese_font_nothing_complains(small: StudyFigures) -> None:
    renamed = replace(small, cells=tuple(replace(cell, tag="散文") for cell in small.cells), gains=())
    assert all(picture.png.startswith(b"\x89PNG") for picture in draw(renamed))


@pytest.mark.usefixtures("no_chinese_font")
def test_label_without_a_font_falls_back_to_what_can_be_shown() -> None:
    assert style.label("zh-散文", instead="content 3") == "zh"
    assert style.tag_label(["code", "散文"], "散文") == "content 2"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["W" * 300, "文" * 300, "\x9b" * 300, r"\frac{$" * 100])
def test_a_name_of_any_length_leaves_room_for_what_is_drawn(name: str, small: StudyFigures) -> None:
    cells = tuple(cell if cell.arm == "off" else replace(cell, method=name) for cell in small.cells)
    gains = tuple(replace(gain, method=name) for gain in small.gains)
    assert draw(replace(small, cells=cells, gains=gains))


def test_a_packed_picture_keeps_the_papers_white_and_the_arms_colours_as_they_are() -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    with style.house_style():
        sheet = style.Sheet(1)
        panel = sheet.panel(0)
        panel.set_xlim(0, len(style.ARM_COLOURS))
        for place, colour in enumerate(style.ARM_COLOURS):
            panel.add_patch(Rectangle((place, 0), 1, 1, color=colour))
        drawn = np.asarray(Image.open(BytesIO(sheet.png())).convert("RGB"), dtype=int)
    assert drawn[0, 0].tolist() == [255, 255, 255]
    for colour in style.ARM_COLOURS:
        off = np.abs(drawn - np.round(np.multiply(to_rgb(colour), 255))).max(axis=2)
        assert np.count_nonzero(off <= 2) > 1000, colour


def test_dollars_are_not_mathematics() -> None:
    assert style.label("a $x$ b") == r"a \$x\$ b"


def test_drawing_leaves_the_users_settings_alone(small: StudyFigures) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    draw(small)
    assert {key: value for key, value in dict(mpl.rcParams).items() if value != before[key]} == {}
