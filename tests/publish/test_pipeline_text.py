"""The pipeline section in every form of the report, and a rehearsal's stamp on everything it prints."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.pipeline import PipelineFigures, PipelineLoad
from specprof.analyse.results import Figure, StudyFigures
from specprof.engine.rehearsal import STAMP
from specprof.publish.card import card
from specprof.publish.card_reading import figures_of
from specprof.publish.card_text import card_markdown
from specprof.publish.fitness import assess
from specprof.publish.grid import Grid
from specprof.publish.pipeline_text import pipeline_sentences, pipeline_tables
from specprof.publish.report import render_html, render_markdown
from specprof.publish.summary import answer
from specprof.publish.tables import print_report
from tests.publish.conftest import HOSTILE, around, make_gate

ONE = Figure(1.0, 1.0, 1.0)


def load(n: int, gain: float, *, filling: float | None, sharing: float | None, **changes: Any) -> PipelineLoad:
    """Three stages: the parts measured, or bounded where they are None."""
    fill = Figure(None, 1.9, 3.0) if filling is None else around(filling, 0.02)
    share = Figure(None, gain / 3, gain / 1.9) if sharing is None else around(sharing, 0.02)
    plain = PipelineLoad(
        concurrency=n,
        batches=min(n, 3),
        filled_share=min(n, 3) / 3,
        busy_share=around(0.29 * min(n, 3), 0.02),
        batching_gain=around(gain, 0.03) if n > 1 else ONE,
        filling_gain=ONE if n == 1 else fill,
        sharing_gain=ONE if n == 1 else share,
        valid=True,
    )
    return replace(plain, **changes)


def piped(arm: str = "off", **changes: Any) -> PipelineFigures:
    plain = PipelineFigures(
        tag="code",
        protocol="forced",
        stop="forced",
        length=128,
        arm=arm,
        method="off" if arm == "off" else "ngram K=4",
        stages=3,
        slowest_share=16 / 43,
        split_known=True,
        hand_over_s=Figure(0.00051, 0.00045, 0.00057) if arm == "off" else None,
        loads=(
            load(1, 1.0, filling=1.0, sharing=1.0),
            load(3, 2.86, filling=2.86, sharing=1.0, sharing_gain=ONE),
            load(8, 3.9, filling=2.86, sharing=1.364),
        ),
    )
    return replace(plain, **changes)


@pytest.fixture
def staged(study: StudyFigures) -> StudyFigures:
    arms = list(study.arms) or ["off", "on"]
    return replace(study, pipeline=(piped(), piped(next(arm for arm in arms if arm != "off"))))


def test_a_sentence_splits_the_gain_and_prices_the_hand_over(staged: StudyFigures) -> None:
    off, on = pipeline_sentences(staged)
    assert off == (
        "code · forced 128 · off: batching gives 3.90× [3.78, 4.02] at N=8: 2.86× [2.80, 2.92] by filling 3 stages, "
        "1.36× [1.34, 1.39] by larger batches; a hand-over costs 0.51 ms [0.45, 0.57] per stage and step"
    )
    assert "hand-over" not in on


def test_where_it_was_not_measured_a_sentence_says_what_must_be(study: StudyFigures) -> None:
    """As in the seed: one and eight streams on three cards, nothing between."""
    bounded = piped(loads=(load(1, 1.0, filling=1.0, sharing=1.0), load(8, 3.77, filling=None, sharing=None)))
    (told,) = pipeline_sentences(replace(study, pipeline=(bounded,)))
    assert "filling 3 stages gives 3× at most, so larger batches give at least 1.26× (N=3 has no fit figure)" in told


def test_a_hand_over_that_only_has_bounds_says_why(study: StudyFigures) -> None:
    starved = piped(hand_over_s=Figure(None, 0.0011, 0.0159))
    (told,) = pipeline_sentences(replace(study, pipeline=(starved,)))
    assert "between 1.10 and 15.9 ms" in told
    assert "waiting cannot be told from computing" in told


def test_a_gate_and_an_assumed_split_are_told(study: StudyFigures) -> None:
    unfit = piped(split_known=False, loads=(*piped().loads[:2], replace(piped().loads[2], valid=False)))
    figures = replace(study, pipeline=(unfit,))
    (told,) = pipeline_sentences(figures)
    assert "a gate forbids to rely on it" in told
    (table,) = pipeline_tables(Grid(figures), "vLLM")
    assert "the layer split is not stated" in table.groups[0].context
    assert table.groups[0].rows[2].unfit


def test_the_table_holds_every_load_of_every_arm(staged: StudyFigures) -> None:
    (table,) = pipeline_tables(Grid(staged), "vLLM 0.32.0")
    assert table.title == "forced 128 · vLLM 0.32.0"
    (group,) = table.groups
    assert "3 stages, the slowest with 37% of the layers" in group.context
    rows = [[entry.text for entry in row.entries] for row in group.rows]
    assert [row[0] for row in rows] == ["1", "3", "8"] * 2
    assert rows[0][2:5] == ["1", "33%", "29%"]
    assert rows[2][2:] == ["3", "100%", "87%", "3.90", "2.86", "1.36"]


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def test_html_markdown_terminal_and_card_tell_it_and_markup_stays_text(staged: StudyFigures) -> None:
    hostile = replace(staged, pipeline=(*staged.pipeline, piped(tag=HOSTILE)))
    told = card(hostile)
    assert [entry["stages"] for entry in told["pipeline"]] == [3, 3, 3]
    assert told["headlines"] == card(replace(hostile, pipeline=()))["headlines"]
    html, markdown, text = render_html(hostile, (), (), told), render_markdown(hostile, (), (), told), printed(hostile)
    assert 'href="#pipeline"' in html
    for page in (html, markdown):
        assert "by filling 3 stages" in page
        assert "<script>alert('x')" not in page
        assert "<img src=x" not in page
    assert "Pipeline: 3 stages" in text
    assert "\x1b[31m" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= 100


def test_a_card_comes_back_as_figures(staged: StudyFigures) -> None:
    told = card(staged)
    back = figures_of(told)
    assert all(isinstance(found, PipelineFigures) for found in back.pipeline)
    assert card(replace(staged, pipeline=back.pipeline)) == told


def test_one_stage_tells_nothing_of_a_pipeline(study: StudyFigures) -> None:
    told = card(study)
    assert "pipeline" not in told
    pages = (render_html(study, (), (), told), render_markdown(study, (), (), told), printed(study))
    assert not any("Pipeline stages" in page or 'id="pipeline"' in page for page in pages)


# -- a rehearsal ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rehearsed(study: StudyFigures) -> StudyFigures:
    """The study's own environment and cells, stamped as `analyse` stamps them."""
    launches = {
        number: {**facts, "extra": {**(facts.get("extra") or {}), "rehearsal": STAMP}}
        for number, facts in (study.environment.get("launches") or {"0": {"name": "vllm-cpu"}}).items()
    }
    gate = make_gate(15, "rehearsal", STAMP, "Measure on GPUs.", invalid=True)
    cells = tuple(replace(cell, gates=(*cell.gates, gate)) for cell in study.cells)
    environment = {**{k: v for k, v in study.environment.items() if k != "engine"}, "launches": launches}
    gains = tuple(replace(gain, valid=False) for gain in study.gains)
    return replace(study, cells=cells, gains=gains, environment=environment, verdicts=())


def test_no_number_of_a_rehearsal_is_fit_to_be_quoted(rehearsed: StudyFigures) -> None:
    assert card(rehearsed)["headlines"] == []
    fitness = assess(rehearsed)
    assert not fitness.fit
    assert fitness.unfit
    assert all(any(o.gate == "gate 15 (rehearsal)" for o in held.objections) for held in fitness.unfit)


def test_every_page_of_a_rehearsal_is_stamped(rehearsed: StudyFigures) -> None:
    told = card(rehearsed)
    pages = {
        "html": render_html(rehearsed, (), (), told),
        "markdown": render_markdown(rehearsed, (), (), told),
        "card.md": card_markdown(rehearsed),
        "terminal": " ".join(printed(rehearsed).split()),
    }
    for name, page in pages.items():
        assert STAMP in page, name


def test_its_first_sentence_is_the_stamp_and_no_gain_is_summed_up(rehearsed: StudyFigures) -> None:
    first, rest = answer(rehearsed)
    assert first == "Rehearsal: not a pipeline figure."
    assert "Batching by itself" not in rest
    assert "×" not in rest
