"""What forbids publication, in our own studies and in cards from elsewhere."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specprof.analyse.results import CellFigures, Figure, Severity, StudyFigures
from specprof.errors import InputError
from specprof.publish.card import card, figures_json
from specprof.publish.card_reading import figures_of, read_card
from specprof.publish.fitness import SPECULATION, THROUGHPUT, address, assess, require_publishable
from tests.publish.conftest import make_gate

Card = dict[str, Any]


def reasons(study: StudyFigures, where: str, metric: str = THROUGHPUT) -> list[str]:
    """What stands against a number of a study."""
    return [
        objection.words
        for found in assess(study).unfit
        if address(found.number.cell) == where and found.number.metric == metric
        for objection in found.objections
    ]


def changed(study: StudyFigures, change: Callable[[CellFigures], CellFigures]) -> StudyFigures:
    return replace(study, cells=tuple(map(change, study.cells)))


def test_what_is_fit_is_what_the_card_calls_a_headline(study: StudyFigures) -> None:
    assert [fit.context for fit in assess(study).fit] == [line["context"] for line in card(study)["headlines"]]


def test_invalid_gate_forbids_the_cell_and_every_gain_made_of_it(study: StudyFigures) -> None:
    where = "zh-散文/forced/on/8"
    for metric in (THROUGHPUT, SPECULATION, "batching_gain", "interaction"):
        (said,) = reasons(study, where, metric)
        assert said.startswith("Gate 7 (loop): 3 of 16 texts repeat themselves")
        assert said.endswith("Use the unflagged figures, or a natural stop.")
    assert reasons(study, "zh-散文/forced/on/2", SPECULATION) == []


def test_gain_names_the_other_cell_that_spoils_it(small: StudyFigures) -> None:
    gate = make_gate(9, "foreign traffic", "12 tokens too many", "Stop the other client.", invalid=True)
    spoilt = changed(small, lambda cell: replace(cell, gates=(gate,)) if cell.arm == "off" else cell)
    (said, *_) = reasons(spoilt, "code/forced/on/8", SPECULATION)
    assert said.startswith("Gate 9 (foreign traffic): Code · forced 128 · prompt 42 · N=8 · off: 12 tokens too many.")
    assert reasons(spoilt, "code/forced/on/8") == []


def test_caution_forbids_nothing(study: StudyFigures) -> None:
    assert reasons(study, "json/natural/on/8") == []


def test_number_without_an_interval_cannot_be_quoted(small: StudyFigures) -> None:
    once = changed(small, lambda cell: replace(cell, throughput_tok_s=Figure(cell.throughput_tok_s.value)))
    (said,) = reasons(once, "code/forced/off/1")
    assert said.startswith("No interval: ")
    assert "blocks: 4" in said


@pytest.mark.parametrize(
    "tag", ["mixed", "All", "code+zh-prose", "code, json", "code and prose", "code|json", "code & prose"]
)
def test_mixed_contents_cannot_be_quoted(small: StudyFigures, tag: str) -> None:
    mixed = changed(small, lambda cell: replace(cell, tag=tag))
    (said,) = reasons(mixed, f"{tag}/forced/off/1")
    assert said.startswith(f"Mixed contents: '{tag}'")


@pytest.mark.parametrize("tag", ["code", "c++", "c++17", "zh-散文", "q&a", "andromeda"])
def test_one_content_is_not_mixed(small: StudyFigures, tag: str) -> None:
    assert reasons(changed(small, lambda cell: replace(cell, tag=tag)), f"{tag}/forced/off/1") == []


@pytest.mark.parametrize(("survival", "blocked"), [(0.9989, False), (0.999, True), (1.0, True)])
def test_any_position_accepted_nearly_always_blocks_publication(
    small: StudyFigures, survival: float, blocked: bool
) -> None:
    """METHOD 7, gate 12: from 0.999 on, at any position."""
    curve = (Figure(1.0 if survival == 1.0 else 0.9), Figure(survival))
    drafted = changed(small, lambda cell: replace(cell, survival=curve) if cell.arm == "on" else cell)
    said = reasons(drafted, "code/forced/on/8")
    assert bool(said) is blocked
    if blocked:
        assert said[0].startswith("Gate 12 (too good): Draft position")
        assert "Explain it before publishing" in said[0]
        assert reasons(drafted, "code/forced/on/8", SPECULATION)
        assert reasons(drafted, "code/forced/off/8") == []


def test_study_of_which_nothing_is_fit_is_refused_with_gate_and_remedy(small: StudyFigures) -> None:
    gate = make_gate(14, "filler", "prompts repeat one word", "Use natural text.", invalid=True)
    unfit = changed(small, lambda cell: replace(cell, gates=(gate,)))
    with pytest.raises(InputError, match=r"none of its \d+ numbers.*gate 14 \(filler\).*Use natural text\."):
        require_publishable(assess(unfit))
    with pytest.raises(InputError, match="holds no number yet"):
        require_publishable(assess(replace(small, cells=(), gains=())))
    require_publishable(assess(small))


def test_figures_of_a_card_are_the_figures_it_was_made_from(study: StudyFigures) -> None:
    made = card(study)
    read = figures_of(made)
    told = json.loads(figures_json(read))
    assert told == {key: made[key] for key in told}
    assert read.cells[0].gates == ()
    assert {type(gate.severity) for cell in read.cells for gate in cell.gates} == {Severity}


# -- cards from elsewhere ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(study: StudyFigures) -> Card:
    return card(study)


def written(made: Card, folder: Path, edit: Callable[[Card], object]) -> Path:
    edited = copy.deepcopy(made)
    edit(edited)
    path = folder / "card.json"
    path.write_text(json.dumps(edited), encoding="utf-8")
    return path


def test_untouched_card_is_read(made: Card, tmp_path: Path) -> None:
    read = read_card(written(made, tmp_path, lambda _: None))
    assert {**read, "headlines": []} == {**made, "headlines": []}
    assert [line["figure"] for line in read["headlines"]] == [line["figure"] for line in made["headlines"]]


def test_lines_to_copy_are_what_the_cells_say_whatever_was_written(made: Card, tmp_path: Path) -> None:
    flattered = "code · forced 128 · 99.9 tok/s · gates: none"
    read = read_card(written(made, tmp_path, lambda c: first(c).update(context=flattered)))
    assert first(read)["context"].startswith("code · forced 128 · prompt 42 · N=1 · off · 20.4 tok/s [19.4, 21.4]")


def first(made: Card) -> Card:
    """The first headline: code, forced, off, N=1."""
    line: Card = made["headlines"][0]
    return line


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda c: first(c)["figure"].update(low=None, high=None),
            r"code/forced/off/1 \(throughput_tok_s\).*No interval",
        ),
        (lambda c: first(c).pop("figure"), "No interval"),
        (lambda c: first(c)["figure"].update(low=99.0), "No interval"),
        (lambda c: first(c).pop("stop"), "code/forced/off/1.*Hidden stop rule"),
        (lambda c: first(c).update(stop=""), "Hidden stop rule"),
        (lambda c: first(c).update(context="code · 20.4 tok/s"), "Hidden stop rule"),
        (lambda c: first(c).update(tag="code+json"), r"code\+json/forced.*Mixed contents"),
        (lambda c: first(c).update(tag="mixed"), "Mixed contents"),
        (
            lambda c: first(c)["gates"].append(
                {"gate": 7, "name": "loop", "severity": "invalid", "evidence": "loops", "remedy": "Stop earlier."}
            ),
            r"Gate 7 \(loop\): Loops\. Stop earlier\.",
        ),
        (lambda c: first(c)["figure"].update(value=21.0), "its cell says something else"),
        (lambda c: first(c).update(stop="natural", context="natural ≤128"), "its cell says something else"),
        (lambda c: first(c).update(tag="rust"), "no fit cell of this card stands behind it"),
        (lambda c: c["cells"][0].update(throughput_tok_s={"value": 40.0, "low": 39.0, "high": 41.0}), "something else"),
        (lambda c: c["cells"][0].update(ttft_ms=1), r"no valid card at \$\.cells\[0\]"),
        (lambda c: c.pop("cells"), "no valid card at"),
        (lambda c: c.pop("headlines"), "has no headlines"),
        (lambda c: c.update(headlines=["fast"]), "no JSON object"),
        (lambda c: c.update(schema_version=9), "schema_version 9"),
    ],
)
def test_edited_card_is_refused_by_name(made: Card, tmp_path: Path, edit: Callable[[Card], object], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read_card(written(made, tmp_path, edit))
    assert str(tmp_path / "card.json") in str(refused.value)
    assert "fault of specprof" not in str(refused.value)


def test_headline_of_an_unfit_cell_is_refused(made: Card, tmp_path: Path) -> None:
    """Its gates taken off the headline, they still stand in the cell."""

    def claim(edited: Card) -> None:
        line = copy.deepcopy(first(edited))
        cell = next(c for c in edited["cells"] if c["gates"] and c["gates"][-1]["severity"] == "invalid")
        line.update({name: cell[name] for name in ("tag", "protocol", "arm", "method", "concurrency")})
        edited["headlines"].append({**line, "figure": cell["throughput_tok_s"]})

    with pytest.raises(InputError, match=r"zh-散文/forced/on/4.*no fit cell"):
        read_card(written(made, tmp_path, claim))


@pytest.mark.parametrize(("content", "said"), [("{", "is not JSON"), ("[]", "is no card"), (None, "cannot be read")])
def test_what_is_no_card_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "card.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_card(path)
