"""card.md: what one pastes is whole, quotable and renders as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.card import card
from specprof.publish.card_reading import figures_of
from specprof.publish.card_text import card_markdown
from tests.publish.conftest import HOSTILE


@pytest.fixture(scope="module")
def made(study: StudyFigures) -> dict[str, Any]:
    return card(study)


@pytest.fixture(scope="module")
def text(study: StudyFigures) -> str:
    return card_markdown(study)


def table_rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.*) \|$", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def test_heading_names_study_engine_and_model(text: str) -> None:
    assert text.startswith("## demo: what speculative decoding gave\n\nEngine: vLLM 0.32.0 CPU · model: builtin:gemma")
    assert "measured: 2026-11-29" in text


def test_table_holds_one_row_per_quotable_cell(text: str, study: StudyFigures) -> None:
    heading, *rows = table_rows(text)
    assert heading == [
        *("content", "stop rule", "prompt", "N", "arm", "tok/s [95%]", "gain [95%]"),
        *("AL", "tokens per step", "rests on", "gates"),
    ]
    assert len(rows) == sum(cell.valid for cell in study.cells)
    row = next(row for row in rows if row[:5] == ["code", "forced 128", "42", "1", "ngram K=4"])
    # 20.4 tok/s off, a gain of 2.16 ± 8%; 1 + 0.99 × (0.71 + 0.54 + 0.42 + 0.34) tokens a drafted step, 72% of them
    # drafted: 1 + 0.72 × 1.99 a step: see conftest
    assert row[5:] == [
        *("44.1 [41.9, 46.3]", "2.16× [1.99, 2.33]", "2.99", "2.43"),
        *("2 launches (fewer than 4), 16 prompts", "none"),
    ]


def test_every_headline_has_its_line_to_copy(text: str, made: dict[str, Any]) -> None:
    block = text.partition("```text\n")[2].partition("\n```")[0].splitlines()
    assert len(block) > 50
    assert set(block) == {line["context"] for line in made["headlines"]}


def test_how_it_was_measured(text: str) -> None:
    assert "16 requests a cell from 2 engine launches of each arm" in text
    assert "Repetition penalty 1.2 in both arms" in text
    assert "specprof run study.yaml" in text
    assert "specprof 0.1.0 (commit 3f2a91bc)" in text


def test_gates_are_told_in_words_with_remedies(text: str) -> None:
    gates = text.partition("### Gates")[2].partition("###")[0]
    assert "Gate 2, short stops: 8 of 46 rows" in gates
    assert "median output 96 tokens &lt; 128. Ask for longer texts" in gates


def test_unfit_numbers_stand_apart_with_gate_and_remedy(text: str) -> None:
    quotable, unfit = text.split("### Not fit to be quoted")
    for address in ("zh-散文/forced/on/4", "zh-散文/forced/on/8"):
        assert address in unfit
    assert "Gate 7 (loop): 3 of 16 texts repeat themselves" in unfit
    assert "Use the unflagged figures" in unfit
    assert not [
        row for row in table_rows(quotable) if row[:2] == ["zh-散文", "forced 128"] and row[3:5] == ["8", "ngram"]
    ]


def test_number_without_an_interval_is_not_in_the_table(small: StudyFigures) -> None:
    once = tuple(replace(cell, throughput_tok_s=Figure(cell.throughput_tok_s.value)) for cell in small.cells)
    told = card_markdown(replace(small, cells=once))
    assert all(row[5] == "—" for row in table_rows(told)[1:])
    assert "No interval: One prompt" in told


def test_study_without_a_number_says_so(small: StudyFigures) -> None:
    told = card_markdown(replace(small, cells=(), gains=()))
    assert "No number of this study is fit to be quoted." in told


def test_hostile_text_renders_as_text(small: StudyFigures) -> None:
    def named(name: str) -> Any:
        return name.replace("code", f"code {HOSTILE}")

    cells = tuple(replace(cell, tag=named(cell.tag), method=HOSTILE) for cell in small.cells)
    gains = tuple(replace(gain, tag=named(gain.tag)) for gain in small.gains)
    hostile = replace(small, study=f"# {HOSTILE}", cells=cells, gains=gains, notes=(f"```\n{HOSTILE}",))
    told = card_markdown(hostile)
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(told)
    assert not re.search(r"<script|<img|href=", rendered)
    assert rendered.count("<table>") == 1
    assert rendered.count("<tr>") == 1 + sum(cell.valid for cell in cells)
    assert not any(char in told for char in "\x1b\u202e")


def test_card_md_lies_beside_the_card_and_says_the_same(report: Path) -> None:
    made = json.loads((report.parent / "card.json").read_text(encoding="utf-8"))
    told = (report.parent / "card.md").read_text(encoding="utf-8")
    assert all(line["context"] in told for line in made["headlines"])


def test_card_read_back_makes_the_same_rows(text: str, made: dict[str, Any]) -> None:
    """But for a last digit where six significant ones round another way."""
    again = card_markdown(figures_of(made))
    assert [row[:5] for row in table_rows(again)] == [row[:5] for row in table_rows(text)]
