"""Mixed traffic in every form of the report: the answer with its context, and markup from outside as plain text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.results import Figure, MixFigures, MixVerdict, StudyFigures
from specprof.publish.card import card
from specprof.publish.grid import Grid
from specprof.publish.mixed_text import answer, mixed_sentences, mixed_tables
from specprof.publish.report import render_html, render_markdown
from specprof.publish.tables import print_report
from tests.publish.conftest import HOSTILE, around, make_gate

ON = MixFigures(
    tag="code",
    beside=("zh-散文",),
    protocol="mixed",
    stop="forced",
    length=128,
    alone_protocol="forced",
    arm="on",
    method="ngram K=4",
    concurrency=8,
    num_prompts=16,
    num_blocks=4,
    decode_speed_alone_tok_s=around(18.2, 0.03),
    decode_speed_mixed_tok_s=around(15.1, 0.03),
    decode_speed_ratio=around(0.83, 0.02),
    acceptance_length_ratio=Figure(1.0, 1.0, 1.0),
    steps_per_s_ratio=around(0.83, 0.02),
    control_ratio=around(0.99, 0.01),
    tested_ratio=Figure(0.838, 0.82, 0.856),
    speculation_gain_alone=around(1.31, 0.04),
    speculation_gain_mixed=around(1.09, 0.04),
    verdict=MixVerdict.SLOWED,
    gates=(),
    valid=True,
)
OFF = replace(
    ON,
    arm="off",
    method="off",
    decode_speed_ratio=around(0.99, 0.01),
    acceptance_length_ratio=None,
    control_ratio=None,
    tested_ratio=around(0.99, 0.01),
    speculation_gain_alone=None,
    speculation_gain_mixed=None,
    verdict=MixVerdict.NOT_SLOWED,
)
GATE = make_gate(9, "foreign traffic", f"server counted more {HOSTILE}", "Serve nobody else.", invalid=True)


@pytest.fixture
def mixed(study: StudyFigures) -> StudyFigures:
    return replace(study, mixes=(OFF, ON, replace(ON, tag=HOSTILE, gates=(GATE,), valid=False)))


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def test_the_answer_stands_with_its_ratio_and_both_gains() -> None:
    assert answer(ON) == (
        "slowed: 0.84× [0.82, 0.86] its decode speed alone (90%); speculation gives 1.31× [1.26, 1.36] alone and "
        "1.09× [1.05, 1.13] mixed"
    )
    assert answer(replace(ON, valid=False)).endswith("; a gate forbids to rely on it")
    unknown = replace(ON, tested_ratio=Figure(None), verdict=MixVerdict.UNDECIDED)
    assert answer(unknown) == "undecided: the content was not measured alone at full load"


def test_the_table_sets_the_arms_side_by_side(mixed: StudyFigures) -> None:
    (table,) = mixed_tables(Grid(mixed), "vLLM 0.32.0 CPU")
    assert table.title == "mixed (forced 128) · vLLM 0.32.0 CPU"
    group, hostile = table.groups
    assert group.tag == "code beside zh-散文"
    assert group.context == "alone: forced; 16 prompts; 4 blocks"
    off, on = ([entry.text for entry in row.entries] for row in group.rows)
    assert off == ["8", "off", "18.2", "15.1", "0.99", "—", "0.83", "—", "0.99", "not slowed", "—", "—", ""]
    assert on[4:12] == ["0.83", "1.00", "0.83", "0.99", "0.84", "slowed", "1.31", "1.09"]
    assert [row.unfit for row in (*group.rows, *hostile.rows)] == [False, False, True]
    assert "gate 9! (foreign traffic) at N=8, ngram K=4" in hostile.context


def test_sentences_speak_of_the_arms_with_speculation(mixed: StudyFigures) -> None:
    first, *rest = mixed_sentences(mixed)
    assert first.startswith("code beside zh-散文 · mixed (forced 128) · N=8 · ngram K=4: slowed: 0.84×")
    assert len(rest) == 1


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_shows_it_within_its_width(mixed: StudyFigures, width: int) -> None:
    text = printed(mixed, width)
    assert "Mixed traffic" in text
    assert "\x1b[31m" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_html_markdown_and_card_tell_it_and_nothing_of_it_is_a_headline(mixed: StudyFigures) -> None:
    told = card(mixed)
    assert [entry["verdict"] for entry in told["mixes"]] == ["not slowed", "slowed", "slowed"]
    assert not [line for line in told["headlines"] if line["protocol"] == "mixed"]
    html, markdown = render_html(mixed, (), (), told), render_markdown(mixed, (), (), told)
    assert 'href="#mixed"' in html
    for page in (html, markdown):
        assert "code beside zh-散文" in page
        assert "not slowed" in page
        assert "<script>alert('x')" not in page
        assert "<img src=x" not in page


def test_nothing_mixed_is_nothing_told(study: StudyFigures) -> None:
    told = card(study)
    assert told["mixes"] == []
    pages = (render_html(study, (), (), told), render_markdown(study, (), (), told), printed(study))
    assert not any("Mixed traffic" in page for page in pages)
