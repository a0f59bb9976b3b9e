"""Sampled texts under the target: told in every form of the report, and left out where nothing was sampled."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.results import StudyFigures
from specprof.publish.card import card
from specprof.publish.grid import Grid
from specprof.publish.numbers import p_value
from specprof.publish.report import render_html, render_markdown
from specprof.publish.sections import surprise_table
from specprof.publish.tables import print_report


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def test_the_table_sets_the_arms_side_by_side(study: StudyFigures) -> None:
    table = surprise_table(Grid(study), "vLLM 0.32.0 CPU")
    assert table is not None
    (group,) = table.groups
    off, on = ([entry.text for entry in row.entries] for row in group.rows)
    assert off[:6] == ["natural ≤256, T = 0.8", "8", "off", "4,576", "0", "13.4"]
    assert on[2:6] == ["ngram K=4", "4,576", "11", "50.2"]
    assert on[9:11] == ["<0.001", "0.21"]
    assert off[9:11] == ["—", "—"]
    assert group.rows[1].entries[3].aside == "2 texts not"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_shows_it_within_its_width(study: StudyFigures, width: int) -> None:
    text = printed(study, width)
    assert "Sampled texts under the target" in text
    assert "50.2" in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_html_markdown_and_card_tell_it(study: StudyFigures) -> None:
    told = card(study)
    assert [entry["impossible"] for entry in told["surprise"]] == [0, 11]
    assert told["surprise"][0]["tail_p_value"] is None
    html, markdown = render_html(study, (), (), told), render_markdown(study, (), (), told)
    for page in (html, markdown):
        assert "Sampled texts under the target" in page
        assert "50.2" in page
    assert 'href="#surprise"' in html


def test_nothing_sampled_is_nothing_told(study: StudyFigures) -> None:
    greedy = replace(study, surprise=())
    told = card(greedy)
    assert told["surprise"] == []
    assert surprise_table(Grid(greedy), "") is None
    pages = (render_html(greedy, (), (), told), render_markdown(greedy, (), (), told), printed(greedy))
    assert not any("under the target" in page for page in pages)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.00004, "<0.001"), (0.0042, "0.004"), (0.051, "0.051"), (0.34, "0.34"), (1, "1.00")],
)
def test_p_values_are_written_as_far_as_they_matter(value: float | None, text: str) -> None:
    assert p_value(value) == text
