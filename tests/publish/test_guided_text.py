"""Good answers and guided writing in every form of the report, and markup from outside as plain text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.guided import GuidedFigures
from specprof.analyse.quality import QualityFigures
from specprof.analyse.results import Figure, StudyFigures, as_json
from specprof.publish.card import card
from specprof.publish.card_reading import figures_of
from specprof.publish.grid import Grid
from specprof.publish.guided_text import guided_sentences, guided_tables, quality_sentences, quality_tables
from specprof.publish.report import render_html, render_markdown
from specprof.publish.tables import print_report
from tests.publish.conftest import HOSTILE, around, make_gate

GATE = make_gate(2, "short stops", f"median output 61 {HOSTILE}", "Allow longer texts.")
OFF = QualityFigures(
    tag="json",
    protocol="free",
    stop="natural",
    length=128,
    arm="off",
    method="off",
    concurrency=4,
    check="json",
    num_requests=32,
    num_good=8,
    num_bad=20,
    num_failed=2,
    num_unjudged=2,
    good_request_share=Figure(0.2667, 0.14, 0.44),
    good_token_share=Figure(0.21, 0.1, 0.38),
    good_tok_s=Figure(23.1),
    gates=(),
    valid=True,
)
FREE = replace(OFF, protocol="guided", num_good=30, num_bad=0, good_request_share=Figure(0.9375, 0.8, 0.98))
ON = GuidedFigures(
    tag="json",
    free_protocol="free",
    guided_protocol="guided",
    stop="natural",
    length=128,
    arm="on",
    method="ngram K=4",
    concurrency=4,
    num_prompts=8,
    acceptance_length_free=around(2.1, 0.05),
    acceptance_length_guided=around(2.52, 0.05),
    acceptance_length_ratio=around(1.2, 0.04),
    decode_speed_free_tok_s=around(20.0, 0.03),
    decode_speed_guided_tok_s=around(22.0, 0.03),
    decode_speed_ratio=around(1.1, 0.03),
    throughput_free_tok_s=around(70.0, 0.03),
    throughput_guided_tok_s=around(74.2, 0.03),
    throughput_ratio=around(1.06, 0.03),
    good_request_share_free=Figure(0.2667, 0.14, 0.44),
    good_request_share_guided=Figure(0.9375, 0.8, 0.98),
    speculation_gain_free=around(1.3, 0.04),
    speculation_gain_guided=around(1.5, 0.04),
    speculation_gain_ratio=around(1.15, 0.05),
    gates=(),
    valid=True,
)
WITHOUT = replace(
    ON,
    arm="off",
    method="off",
    acceptance_length_free=None,
    acceptance_length_guided=None,
    acceptance_length_ratio=None,
    speculation_gain_free=None,
    speculation_gain_guided=None,
    speculation_gain_ratio=None,
)


@pytest.fixture
def judged(study: StudyFigures) -> StudyFigures:
    return replace(
        study,
        quality=(OFF, FREE, replace(OFF, tag=HOSTILE, check=f"command {HOSTILE}", gates=(GATE,), valid=False)),
        guided=(WITHOUT, ON, replace(ON, tag=HOSTILE, gates=(GATE,), valid=False)),
    )


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def test_both_shares_and_every_count_stand_in_the_table(judged: StudyFigures) -> None:
    free, guided = quality_tables(Grid(judged), "vLLM 0.32.0 CPU")
    assert (free.title, guided.title) == (
        "free (natural ≤128) · vLLM 0.32.0 CPU",
        "guided (natural ≤128) · vLLM 0.32.0 CPU",
    )
    json, hostile = free.groups
    (row,) = json.rows
    texts = [entry.text for entry in row.entries]
    assert texts == ["4", "off", "json", "30", "27%", "21%", "23.1", "20", "2", "2", ""]
    assert row.entries[4].aside == "[14%, 44%]"
    assert [r.unfit for r in (*json.rows, *hostile.rows)] == [False, True]


def test_the_pair_stands_with_its_ratios(judged: StudyFigures) -> None:
    (table,) = guided_tables(Grid(judged), "vLLM 0.32.0 CPU")
    assert table.title == "guided against free (natural ≤128) · vLLM 0.32.0 CPU"
    json, _ = table.groups
    assert json.context == "8 prompts"
    off, on = ([entry.text for entry in row.entries] for row in json.rows)
    assert off == ["4", "off", "27%", "94%", "—", "—", "—", "20.0", "22.0", "1.10", "1.06", "—", "—", "—", ""]
    assert on[4:14] == ["2.10", "2.52", "1.20", "20.0", "22.0", "1.10", "1.06", "1.30", "1.50", "1.15"]


def test_sentences_say_it_with_intervals(judged: StudyFigures) -> None:
    first = next(quality_sentences(judged))
    assert first == (
        "json · free (natural ≤128) · N=4 · off: 27% of requests [14%, 44%] and 21% of tokens [10%, 38%] are good by "
        "json"
    )
    _, on, forbidden = guided_sentences(judged)
    assert on == (
        "json · guided against free · N=4 · ngram K=4: good texts 94% [80%, 98%] guided and 27% [14%, 44%] free; "
        "decode speed 1.10× [1.07, 1.13]; acceptance length 1.20× [1.15, 1.25]; speculation gives 1.50× [1.44, 1.56] "
        "guided and 1.30× [1.25, 1.35] free"
    )
    assert forbidden.endswith("; a gate forbids to rely on it")
    unjudged = replace(judged, quality=(replace(OFF, good_request_share=Figure(None), check="code"),))
    assert next(quality_sentences(unjudged)).endswith("no text could be judged by code")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_shows_it_within_its_width(judged: StudyFigures, width: int) -> None:
    text = printed(judged, width)
    assert "Good answers" in text
    assert "Guided against free" in text
    assert "\x1b[31m" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_html_markdown_and_card_tell_it_and_nothing_of_it_is_a_headline(judged: StudyFigures) -> None:
    told = card(judged)
    assert [entry["num_good"] for entry in told["quality"]] == [8, 30, 8]
    assert [entry["method"] for entry in told["guided"]] == ["off", "ngram K=4", "ngram K=4"]
    assert not [line for line in told["headlines"] if line["protocol"] in ("free", "guided")]
    html, markdown = render_html(judged, (), (), told), render_markdown(judged, (), (), told)
    assert 'href="#quality"' in html
    assert 'href="#guided"' in html
    for page in (html, markdown):
        assert "Good answers" in page
        assert "guided against free" in page
        assert "<script>alert('x')" not in page
        assert "<img src=x" not in page


def test_a_card_is_read_back_as_the_figures_it_was_made_of(judged: StudyFigures) -> None:
    read = figures_of(card(judged))
    assert as_json(read.quality[:2]) == as_json(judged.quality[:2])
    assert as_json(read.guided[:2]) == as_json(judged.guided[:2])
    assert isinstance(read.guided[0], GuidedFigures)
    assert isinstance(read.quality[0], QualityFigures)


def test_nothing_judged_is_nothing_told(study: StudyFigures) -> None:
    told = card(study)
    assert "quality" not in told
    assert "guided" not in told
    pages = (render_html(study, (), (), told), render_markdown(study, (), (), told), printed(study))
    assert not any("Good answers" in page or "Guided against" in page for page in pages)
