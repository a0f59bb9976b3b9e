"""Interference in every form of the report: who waited how long, and markup from outside as plain text."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import accumulate

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.interference import InterferenceFigures, InterferenceRatios, Timeline
from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.card import card
from specprof.publish.card_reading import figures_of
from specprof.publish.figures import draw
from specprof.publish.grid import Grid
from specprof.publish.interference_text import interference_sentences, interference_tables, waiting
from specprof.publish.pictures.interference import longest_stall
from specprof.publish.report import render_html, render_markdown
from specprof.publish.summary import gate_groups
from specprof.publish.tables import print_report
from tests.publish.conftest import HOSTILE, around, make_gate


def timeline(reading: list[float]) -> Timeline:
    """Four decoders with steps of 50 ms, and those given while the newcomer is read."""
    ends = list(accumulate([*[0.05] * 16, *reading, *[0.05] * 20]))
    row = tuple(round(at - ends[15], 5) for at in ends)
    return Timeline(0, (row,) * 4, sum(reading))


def met(arm: str, size: int, **changes: object) -> InterferenceFigures:
    """A newcomer of 912 tokens among four decoders: read whole in 1.4 s, or in eight chunks of 0.22 s."""
    whole = size == 2048
    stall, ttft = (1.45, 1.50) if whole else (0.22, 1.81)
    slower = 1.1 if arm == "on" else 1.0
    plain = InterferenceFigures(
        tag="code",
        arm=arm,
        method="off" if arm == "off" else "ngram K=4",
        decoders=4,
        output_tokens=160,
        newcomer_id="long-code-006",
        prompt_tokens=912,
        max_num_batched_tokens=size,
        reading="whole" if whole else "chunked",
        num_blocks=3,
        baseline_itl_p50_s=around(0.050 * slower, 0.02),
        baseline_itl_p99_s=around(0.055 * slower, 0.02),
        reading_itl_p50_s=around(stall * slower, 0.03),
        reading_itl_p99_s=around(stall * slower, 0.03),
        longest_stall_s=around(stall * slower, 0.03),
        newcomer_share=Figure(1 - 0.05 / stall),
        steps_while_reading=Figure(1.0 if whole else 8.0),
        ttft_s=around(ttft * slower, 0.04),
        against_whole=None if whole else InterferenceRatios(*(around(r, 0.05) for r in (0.15, 0.15, 1.21))),
        against_off=None if arm == "off" else InterferenceRatios(*(around(1.1, 0.05) for _ in range(3))),
        timeline=timeline([1.45] if whole else [0.22] * 8),
        gates=(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


MET = tuple(met(arm, size) for size in (2048, 128) for arm in ("off", "on"))
GATE = make_gate(1, "decoders ended early", f"2 of 4 {HOSTILE}", "Raise output_tokens.", invalid=True)


@pytest.fixture
def interfered(study: StudyFigures) -> StudyFigures:
    return replace(study, interference=(*MET, met("off", 2048, newcomer_id=HOSTILE, gates=(GATE,))))


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def test_a_sentence_says_who_waited_how_long_for_each_way_to_read() -> None:
    assert waiting(MET[0]) == (
        "read whole (max_num_batched_tokens 2048) it stalled a decoder for 1.45 s (a step before: 50 ms) and waited "
        "1.50 s itself"
    )
    in_chunks = "read in chunks (max_num_batched_tokens 128) it stalled a decoder for 220 ms"
    assert waiting(met("off", 128)).startswith(in_chunks)
    assert waiting(met("off", 2048, gates=(GATE,))).endswith(", and a gate forbids to rely on it")
    unread = met("off", 2048, reading="not read", prompt_tokens=None, timeline=None)
    assert waiting(unread) == "with max_num_batched_tokens 2048 it was not read"


def test_sentences_speak_of_one_arm_each(interfered: StudyFigures) -> None:
    off, on, hostile = interference_sentences(interfered)
    assert off.startswith("code · long-code-006 · 912 prompt tokens · among 4 decoders · off: read whole (")
    assert "; read in chunks (" in off
    assert " · ngram K=4: " in on
    assert "\x1b" not in hostile


def test_the_table_sets_whole_over_chunked_and_the_arms_side_by_side(interfered: StudyFigures) -> None:
    table, _ = interference_tables(Grid(interfered), "vLLM 0.32.0 CPU")
    assert table.title == "long-code-006 · 912 prompt tokens · among 4 decoders · vLLM 0.32.0 CPU"
    (group,) = table.groups
    assert (group.tag, group.context) == ("code", "every decoder writes 160 tokens; 3 blocks")
    rows = [[entry.text for entry in row.entries] for row in group.rows]
    assert rows[0][:9] == ["whole", "off", "50 ms", "55 ms", "1.45 s", "1.45 s", "97%", "1.50 s", "1.00"]
    assert rows[0][9:] == ["—", "—", "—", "—", ""]
    assert rows[3][:2] == ["in chunks", "ngram K=4"]
    assert rows[3][8:13] == ["8.00", "0.15", "1.21", "1.10", "1.10"]
    assert [entry.aside for entry in group.rows[0].entries][5] == "[1.41 s, 1.49 s]"


def test_a_gate_stands_with_its_evidence_and_marks_the_row(interfered: StudyFigures) -> None:
    _, hostile = interference_tables(Grid(interfered), "vLLM")
    assert "gate 1! (decoders ended early) at 2048, off: 2 of 4" in hostile.groups[0].context
    assert hostile.groups[0].rows[0].unfit


def test_its_gates_stand_among_the_gates_of_the_study(study: StudyFigures) -> None:
    """A link in the table leads to the gate, and a study of nothing else is not said to have passed every gate."""
    early = make_gate(1, "decoders ended early", "2 of 4 were done", "Raise output_tokens.", invalid=True)
    bad = tuple(met("off", size, gates=(early,)) for size in (2048, 128))
    (group,) = gate_groups(replace(study, cells=(), gains=(), prefill=(), interference=bad))
    assert group.where == "code long-code-006 among 4 decoders, off: 2048 tokens a step, 128 tokens a step"
    figures = replace(study, interference=bad)
    told = card(figures)
    assert 'id="gate-1"' in render_html(figures, (), (), told)
    line = "code · long-code-006 among 4 decoders · 128 tokens a step · off: 2 of 4 were done"
    assert line in render_markdown(figures, (), (), told)
    assert "code long-code-006 among 4 decoders, off: 2048 tokens a step" in " ".join(printed(figures).split())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_shows_it_within_its_width(interfered: StudyFigures, width: int) -> None:
    text = printed(interfered, width)
    assert "Interference" in text
    assert "\x1b[31m" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_html_markdown_and_card_tell_it_and_nothing_of_it_is_a_headline(interfered: StudyFigures) -> None:
    told = card(interfered)
    assert [entry["reading"] for entry in told["interference"]] == ["whole", "whole", "chunked", "chunked", "whole"]
    assert told["headlines"] == card(replace(interfered, interference=()))["headlines"]
    pictures = tuple(picture for picture in draw(interfered) if picture.name.startswith("interference"))
    html, markdown = render_html(interfered, pictures, (), told), render_markdown(interfered, pictures, (), told)
    assert 'href="#interference"' in html
    for page in (html, markdown):
        assert "in chunks" in page
        assert "it stalled a decoder for 1.45 s" in page
        assert "<script>alert('x')" not in page
        assert "<img src=x" not in page
    assert "figures/interference.png" in markdown
    assert html.index('id="interference"') < html.index("A long prompt arrives</span>")


def test_a_card_comes_back_as_figures(interfered: StudyFigures) -> None:
    told = card(interfered)
    back = figures_of(told)
    assert all(isinstance(found, InterferenceFigures) for found in back.interference)
    assert card(replace(interfered, interference=back.interference)) == told


def test_nothing_of_it_is_nothing_told(study: StudyFigures) -> None:
    told = card(study)
    assert "interference" not in told
    pages = (render_html(study, (), (), told), render_markdown(study, (), (), told), printed(study))
    assert not any("nterference" in page for page in pages)


# -- the picture ------------------------------------------------------------------------------------------------------


def test_one_picture_per_newcomer(interfered: StudyFigures) -> None:
    drawn = [picture for picture in draw(interfered) if picture.name.startswith("interference")]
    assert [(picture.name, picture.first) for picture in drawn] == [("interference", True), ("interference-2", False)]
    assert drawn[0].context == "code · long-code-006 · 912 prompt tokens · among 4 decoders"
    assert all(picture.png.startswith(b"\x89PNG") for picture in drawn)


def test_nothing_is_drawn_of_what_was_not_read(study: StudyFigures) -> None:
    unread = replace(study, interference=(met("off", 2048, reading="not read", timeline=None),))
    assert not [picture for picture in draw(unread) if picture.name.startswith("interference")]


def test_the_longest_stall_is_marked_where_it_was() -> None:
    assert longest_stall(timeline([1.45])) == (0, 0.0, 1.45)
    uneven = Timeline(0, ((-0.1, 0.0, 0.2, 0.4), (-0.1, 0.05, 0.35, 0.4)), 0.3)
    assert longest_stall(uneven) == (1, 0.05, 0.35)
    over_before = Timeline(0, ((-2.0, -0.1, 0.1, 0.2),), 0.15)
    assert longest_stall(over_before) == (0, -0.1, 0.1)
    assert longest_stall(Timeline(0, ((-0.2, -0.1),), 0.15)) is None
