"""The report on a terminal: what it says, how wide it is, and that text from outside starts no escape sequence."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.tables import print_report


def printed(figures: StudyFigures, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 90, 100, 140])
def test_no_line_is_wider_than_the_terminal(study: StudyFigures, width: int) -> None:
    assert max(cell_len(line) for line in printed(study, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 100])
def test_no_figure_is_cut_short(study: StudyFigures, width: int) -> None:
    text = printed(study, width)
    assert "…" not in text
    for shown in ("44.1", "[41.9, 46.3]", "2.16", "[1.99, 2.33]", "2.99", "2.43", "3.1%", "+1.2%", "7!"):
        assert shown in text


def test_sentences_come_first_and_say_undecided(study: StudyFigures) -> None:
    text = " ".join(printed(study, 200).split())
    assert "code: speculation gains 2.16× [1.99, 2.33] at N=1" in text
    assert "undecided: 1.04× [0.96, 1.12] at N=8" in text
    assert text.index("undecided: 1.04×") < text.index("forced 128 · off against ngram K=4")


def test_unfit_gains_are_not_told_as_gains(study: StudyFigures) -> None:
    text = " ".join(printed(study, 200).split())
    assert "unfit to be quoted (a gate failed): 0.97× [0.89, 1.05] at N=4" in text


def test_one_gate_over_many_cells_is_told_once_with_its_remedy(study: StudyFigures) -> None:
    text = printed(study, 120)
    assert text.count("Ask for longer texts") == 1
    assert text.count("7! loop") == 1
    assert "zh-散文 forced 128, ngram K=4: N=4, 8" in text


def test_not_a_terminal_gets_no_escape_sequences(study: StudyFigures) -> None:
    assert "\x1b" not in printed(study)


def test_hostile_text_brings_no_escape_sequence_or_markup_of_its_own(study: StudyFigures) -> None:
    text = printed(study, terminal=True)
    assert "\x1b[31mred" not in text
    assert "\u202e" not in text
    assert "[bold]markup[/bold]" in " ".join(text.split())


def test_verdicts_say_what_would_decide_them(study: StudyFigures) -> None:
    assert "About 6 more blocks would decide it." in " ".join(printed(study).split())


def test_study_without_intervals_or_speculation_is_told_honestly(study: StudyFigures) -> None:
    once = replace(
        study, gains=tuple(replace(g, speculation_gain=Figure(g.speculation_gain.value)) for g in study.gains)
    )
    assert "one prompt, so without an interval: 2.16× at N=1" in " ".join(printed(once).split())
    off = replace(study, cells=tuple(cell for cell in study.cells if cell.arm == "off"), gains=(), verdicts=())
    assert "20.4" in printed(off)
