"""Replayed traffic on a real vLLM: the prefix cache is warm, its hit rate is printed, and every table says so.

That a controlled run of the same engine finds nothing in its cache is in test_real_engine.py; that the two are never
compared, in test_cache_replay.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specprof.columns import requests_of
from specprof.records import Phase, Request, Role
from specprof.store import Store
from tests.running import ROOT, measured_study

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BLOCK = 32  # tokens; the CPU's own 128 would leave most of a short prompt out of the cache

STUDY = f"""
study: replay
engine:
  kind: vllm
  model: builtin:smollm2-135m
  args: {{max_model_len: 1024, max_num_seqs: 4, dtype: float32, block_size: {BLOCK}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 8}}}}
concurrency: [2]
prompts: 4
format: chat
cache: replay
"""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, really run."""
    return measured_study(tmp_path_factory.mktemp("cache"), "replay", STUDY)


def asked(study: Path) -> list[Request]:
    """The measured requests of its one cell."""
    (data,) = (data for data in Store.existing(study).cells() if data.cell.role is Role.FIGURE)
    return [request for request in requests_of(data.requests) if request.phase is Phase.MEASURED]


def test_a_replay_finds_what_it_sent_before(replayed: Path) -> None:
    """The sentinel before the cell sent the same prompts: whole blocks are found, never a prompt's last token."""
    told = [(request.prompt_tokens, request.cached_tokens or 0) for request in asked(replayed)]
    assert len(told) == 4
    assert [hits for _, hits in told] == [(tokens - 1) // BLOCK * BLOCK for tokens, _ in told]
    assert all(hits > 0 for _, hits in told)


def test_the_hit_rate_of_the_counters_is_that_of_the_requests(replayed: Path) -> None:
    (found,) = json.loads((replayed / "card.json").read_text(encoding="utf-8"))["cache"]["hits"]
    hits, tokens = (sum(getattr(r, name) for r in asked(replayed)) for name in ("cached_tokens", "prompt_tokens"))
    assert 0 < found["hit_rate"]["value"] < 1
    assert found["hit_rate"]["value"] == pytest.approx(hits / tokens)


def test_the_report_prints_it_and_every_table_says_warm(replayed: Path) -> None:
    report = (replayed / "report.md").read_text(encoding="utf-8")
    assert "## Prefix cache" in report
    tables = [line for line in report.splitlines() if line.startswith("### ") and "vLLM" in line]
    assert len(tables) >= 2
    assert all(line.endswith("warm prefix cache") for line in tables)
