"""card.json: its schema, its context lines, and what it refuses to call a headline."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specprof.analyse.results import Figure, StudyFigures
from specprof.errors import InputError, SpecprofError
from specprof.publish.card import card, figures_json, schema, throughput_headline, validate
from specprof.publish.context import engine_of
from specprof.publish.settings import WITHHELD

Headlines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def made(study: StudyFigures) -> dict[str, Any]:
    return card(study)


def test_schema_is_itself_valid_and_strict() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"].endswith("2020-12/schema")
    objects = [schema(), *(part for part in schema()["$defs"].values() if part.get("type") == "object")]
    assert all(part["additionalProperties"] is False for part in objects)


def test_card_has_the_keys_of_the_design(made: dict[str, Any]) -> None:
    assert {"schema_version", "study", "environment", "cells", "gains", "verdicts", "headlines"} <= set(made)
    cell_keys = (
        "tag protocol arm concurrency prompt_tokens output_tokens throughput_tok_s decode_speed_tok_s ttft_s "
        "chars_per_s acceptance_length acceptance_rate survival tokens_per_engine_step prefill_share queue_share "
        "predicted_throughput_tok_s sum_of_rates_tok_s gates"
    )
    gain_keys = (
        "tag protocol arm concurrency batching_gain batching_gain_off speculation_gain interaction mediated_share "
        "residual"
    )
    assert all(set(cell_keys.split()) <= set(cell) for cell in made["cells"])
    assert all(set(gain_keys.split()) <= set(gain) for gain in made["gains"])
    assert {"name", "outcome", "ratio", "threshold", "hash", "post_hoc", "needs"} <= set(made["verdicts"][0])
    assert {"p50", "p99"} <= set(made["cells"][0]["ttft_s"])
    assert list(made["cells"][0]["throughput_tok_s"]) == ["value", "low", "high"]


def test_off_cells_have_no_acceptance_rather_than_none_accepted(made: dict[str, Any]) -> None:
    off = [cell for cell in made["cells"] if cell["arm"] == "off"]
    assert all(cell["acceptance_length"] is None and cell["survival"] == [] for cell in off)


def test_every_headline_carries_its_context(made: dict[str, Any]) -> None:
    assert len(made["headlines"]) > 50
    for line in made["headlines"]:
        for part in (line["tag"], f"N={line['concurrency']}", line["method"], "vLLM 0.32.0 CPU", "prompt ", "gates: "):
            assert part in line["context"], line["context"]
        assert f"{line['stop']} " in line["context"]
        assert "\n" not in line["context"]


def test_context_line_reads_as_written_in_the_brief(study: StudyFigures) -> None:
    cell = next(c for c in study.cells if (c.tag, c.protocol, c.arm, c.concurrency) == ("code", "forced", "on", 8))
    figures = replace(
        cell,
        throughput_tok_s=Figure(135.5, 128.0, 143.0),
        acceptance_length=Figure(1.9),
        tokens_per_engine_step=Figure(1.34),
    )
    line = throughput_headline(figures, engine_of(study.environment))["context"]
    assert line == (
        "code · forced 128 · prompt 42 · N=8 · ngram K=4 · 135.5 tok/s [128, 143] · 2 launches, 16 prompts · "
        "AL 1.90, 1.34 tokens per engine step · vLLM 0.32.0 CPU · gates: none"
    )


def lines_of(study: StudyFigures, launches: int, prompts: int = 32) -> dict[str, dict[str, Any]]:
    """The headlines of code, forced, N=8, on, by metric, had everything been measured on so many."""
    counts = {"num_prompts": prompts}
    told = card(
        replace(
            study,
            cells=tuple(replace(cell, num_launches=launches, **counts) for cell in study.cells),
            gains=tuple(replace(gain, num_blocks=launches, **counts) for gain in study.gains),
        )
    )["headlines"]
    place = ("code", "forced", "on", 8)
    return {h["metric"]: h for h in told if (h["tag"], h["protocol"], h["arm"], h["concurrency"]) == place}


@pytest.mark.parametrize(
    ("launches", "prompts", "throughput", "ratio"),
    [
        (
            *(1, 2),
            "1 launch (the interval holds prompts only), 2 prompts",
            "first look: 1 launch (the interval holds prompts only), 2 prompts",
        ),
        (2, 8, "2 launches, 8 prompts", "2 launches (fewer than 4), 8 prompts"),
        (3, 32, "3 launches, 32 prompts", "3 launches (fewer than 4), 32 prompts"),
        (4, 32, "4 launches, 32 prompts", "4 launches, 32 prompts"),
    ],
)
def test_every_line_says_on_how_many_launches_and_prompts_it_rests(
    study: StudyFigures, launches: int, prompts: int, throughput: str, ratio: str
) -> None:
    """METHOD 5: at least 4 launches for a publishable ratio; small runs are allowed, and say so."""
    for metric, line in lines_of(study, launches, prompts).items():
        said = throughput if metric == "throughput_tok_s" else ratio
        assert f" · {said} · AL " in line["context"]
        assert (line["num_launches"], line["num_prompts"]) == (launches, prompts)


def test_a_ratio_rests_on_the_least_of_the_cells_it_is_made_of(study: StudyFigures) -> None:
    """Off has 3 blocks and on 5, of which they share 2. Batching compares on with itself; the interaction, all four."""
    blocks = {"off": 3, "on": 5}
    uneven = replace(study, cells=tuple(replace(cell, num_launches=blocks[cell.arm]) for cell in study.cells))
    told = {
        line["metric"]: line["num_launches"]
        for line in card(uneven)["headlines"]
        if (line["tag"], line["protocol"], line["arm"], line["concurrency"]) == ("code", "forced", "on", 8)
    }
    assert told == {"throughput_tok_s": 5, "speculation_gain": 2, "batching_gain": 5, "interaction": 2}


def test_a_card_that_does_not_tell_its_prompts_says_nothing_of_them(study: StudyFigures) -> None:
    lines = lines_of(study, launches=4, prompts=0)
    assert all(" · 4 launches · AL " in line["context"] for line in lines.values())


def test_acceptance_is_never_told_without_the_tokens_of_every_step(made: dict[str, Any]) -> None:
    """METHOD 1: always print both."""
    with_al = [line for line in made["headlines"] if line["acceptance_length"]]
    assert with_al
    for line in with_al:
        said = re.search(r" · AL (\S+), (\S+) tokens per engine step · ", line["context"])
        assert said, line["context"]
        told = [line[name]["value"] for name in ("acceptance_length", "tokens_per_engine_step")]
        assert [float(number) for number in said.groups()] == pytest.approx(told, abs=0.0051)


def test_invalid_cells_and_their_gains_never_become_headlines(study: StudyFigures, made: dict[str, Any]) -> None:
    unfit = {(c.tag, c.protocol, c.arm, c.concurrency) for c in study.cells if not c.valid}
    assert unfit, "the fixture must hold an unfit cell"
    told = {(h["tag"], h["protocol"], h["arm"], h["concurrency"]) for h in made["headlines"]}
    assert not unfit & told
    assert all(gate["severity"] == "caution" for line in made["headlines"] for gate in line["gates"])


def test_gain_of_an_unfit_cell_is_refused_even_if_it_calls_itself_valid(study: StudyFigures) -> None:
    claimed = replace(study, gains=tuple(replace(gain, valid=True) for gain in study.gains))
    told = [
        (h["tag"], h["protocol"], h["concurrency"])
        for h in card(claimed)["headlines"]
        if h["metric"] != "throughput_tok_s"
    ]
    assert ("zh-散文", "forced", 8) not in told
    assert ("zh-散文", "forced", 1) in told


def test_asking_for_an_unfit_headline_names_gate_evidence_and_remedy(study: StudyFigures) -> None:
    cell = next(cell for cell in study.cells if not cell.valid)
    with pytest.raises(InputError, match=r"gate 7 \(loop\) forbids a headline.*repeat themselves.*natural stop"):
        throughput_headline(cell, engine_of(study.environment))


def test_gain_headline_carries_the_gates_of_all_its_cells(study: StudyFigures, made: dict[str, Any]) -> None:
    lines = [h for h in made["headlines"] if (h["tag"], h["protocol"]) == ("json", "natural")]
    assert lines
    assert all("2 short stops" in line["context"] for line in lines)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda made: made.pop("headlines"),
        lambda made: made.update(extra=1),
        lambda made: made["cells"][0].update(ttft_ms=1),
        lambda made: made["cells"][0]["throughput_tok_s"].update(low="fast"),
        lambda made: made["cells"][0]["throughput_tok_s"].update(low=None),
        lambda made: made["verdicts"][0].update(outcome="maybe"),
        lambda made: made["headlines"][0].update(context="two\nlines"),
        lambda made: made["headlines"][0]["gates"].append(
            {"gate": 7, "name": "loop", "severity": "invalid", "evidence": "", "remedy": ""}
        ),
    ],
)
def test_broken_cards_are_refused(made: dict[str, Any], break_it: Any) -> None:
    broken = copy.deepcopy(made)
    break_it(broken)
    with pytest.raises(SpecprofError, match="break its own schema at"):
        validate(broken)


def test_what_is_not_a_number_is_not_known(study: StudyFigures) -> None:
    cells = tuple(replace(cell, throughput_tok_s=Figure(float("inf"), float("nan"), None)) for cell in study.cells)
    made = card(replace(study, cells=cells, gains=()))
    assert made["cells"][0]["throughput_tok_s"] == {"value": None, "low": None, "high": None}
    assert made["headlines"] == []


def test_secrets_of_the_environment_are_withheld(made: dict[str, Any]) -> None:
    text = json.dumps(made)
    assert "sk-very-secret" not in text
    assert "hf_very_secret" not in text
    facts = made["environment"]["launches"]["0"]
    assert facts["env"] == {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_TOKEN": WITHHELD}
    assert facts["argv"][-2:] == ["--api-key", WITHHELD]


def test_printed_figures_are_the_body_of_the_card(study: StudyFigures, made: dict[str, Any]) -> None:
    body = {key: value for key, value in made.items() if key not in ("schema_version", "headlines")}
    assert json.loads(figures_json(study)) == body


def test_arms_that_sound_alike_are_told_apart(study: StudyFigures) -> None:
    twin = tuple(replace(cell, arm="narrow") for cell in study.cells if cell.arm == "on")
    told = {h["context"] for h in card(replace(study, cells=study.cells + twin))["headlines"]}
    assert any("ngram K=4 (on) ·" in line for line in told)
    assert any("ngram K=4 (narrow) ·" in line for line in told)


def test_card_on_disk_is_the_card(report: Path, made: dict[str, Any]) -> None:
    assert json.loads((report.parent / "card.json").read_text(encoding="utf-8")) == made
