"""Guided JSON on a real vLLM, speculation off and n-gram: whatever ends by itself keeps its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specprof.columns import requests_of
from specprof.records import Phase, Role
from specprof.store import Store
from tests.running import ROOT, figures, measured_study

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

STUDY = f"""
study: guided
engine:
  kind: vllm
  model: builtin:smollm2-135m
  args: {{max_model_len: 1024, max_num_seqs: 8, dtype: float32}}
arms:
  "off": {{}}
  ngram-k4:
    speculative_config: {{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}}
workloads:
  - {{tag: json-short, suite: {ROOT}/prompts/json_short.jsonl, quality: json}}
protocols:
  free: {{stop: natural, max_tokens: 128}}
  guided: {{stop: natural, max_tokens: 128, guided: true}}
concurrency: [4]
prompts: 8
format: chat
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_study(tmp_path_factory.mktemp("guided"), "guided", STUDY)


@pytest.fixture(scope="module")
def told(results: Path) -> dict[str, Any]:
    return figures(results)


def judged(results: Path, arm: str, protocol: str) -> list[tuple[str, bool | None]]:
    """Finish reason and mark of every measured text."""
    store = Store.existing(results)
    marks = {key: list(found.good) for key, found in store.marks().items()}
    (data,) = (
        d for d in store.cells() if d.cell.role is Role.FIGURE and (d.cell.arm, d.cell.protocol) == (arm, protocol)
    )
    rows = zip(requests_of(data.requests), marks[data.cell.key], strict=True)
    return [(r.finish_reason or "", good) for r, good in rows if r.phase is Phase.MEASURED]


@pytest.mark.parametrize("arm", ["off", "ngram-k4"])
def test_guided_texts_that_end_by_themselves_keep_their_schema(results: Path, arm: str) -> None:
    ended = [good for reason, good in judged(results, arm, "guided") if reason == "stop"]
    assert ended, "no guided text ended by itself: nothing was tested"
    assert all(ended)


@pytest.mark.parametrize("arm", ["off", "ngram-k4"])
def test_texts_that_were_cut_are_judged_as_they_are(results: Path, arm: str) -> None:
    for protocol in ("free", "guided"):
        for reason, good in judged(results, arm, protocol):
            assert good is not None
            assert reason == "stop" or not good


def test_guided_and_free_stand_side_by_side(told: dict[str, Any]) -> None:
    pairs = {pair["arm"]: pair for pair in told["guided"]}
    assert set(pairs) == {"off", "ngram-k4"}
    for pair in pairs.values():
        assert pair["num_prompts"] == 8
        assert pair["decode_speed_ratio"]["value"] > 0
        assert pair["good_request_share_guided"]["value"] >= pair["good_request_share_free"]["value"]
    assert pairs["off"]["acceptance_length_ratio"] is None
    assert pairs["ngram-k4"]["speculation_gain_guided"]["value"] > 0
    assert len(told["quality"]) == 4


def test_speculation_changes_no_guided_text(results: Path) -> None:
    """Greedy and in float32: the mask is part of the target's distribution, and drafts must respect it."""
    written: dict[str, dict[str, str]] = {}
    for data in Store.existing(results).cells():
        if data.cell.role is Role.FIGURE and data.cell.protocol == "guided":
            written[data.cell.arm] = {r.prompt_id: r.text for r in requests_of(data.requests)}
    assert written["off"] == written["ngram-k4"]
