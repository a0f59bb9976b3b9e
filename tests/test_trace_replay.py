"""A recorded trace on the virtual clock: every request is sent when, as long and of what content it was recorded."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from specprof.analyse.cache import cache_figures
from specprof.analyse.evidence import Evidence
from specprof.columns import cell_data
from specprof.engine.sim import machine_of, run_study
from specprof.records import CellRecord, Phase, Role
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import load_study
from tests.running import ROOT

TRACE = ROOT / "examples" / "trace.csv"
CONFIG = ROOT / "configs" / "trace-replay.yaml"
WARMUP_S, WINDOW_S = 10.0, 40.0  # as the study says


def recorded() -> list[tuple[float, str, int]]:
    """When, what and how many tokens, as the file says it."""
    with TRACE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [(float(row["timestamp"]), row["tag"], int(row["output_tokens"])) for row in rows]


def measured(config: Path) -> tuple[Plan, list[CellRecord]]:
    plan = make_plan(load_study(config))
    records = [*run_study(machine_of("small"), plan.launches, plan.prompts)]
    return plan, [record for record in records if record.cell.role is Role.OPEN]


def test_what_is_sent_is_what_was_recorded() -> None:
    plan, records = measured(CONFIG)
    assert len(records) == 4  # two arms, two launches each
    due = recorded()
    expected = sorted(one for one in due if WARMUP_S <= one[0] < WARMUP_S + WINDOW_S)
    for record in records:
        begins_ns = min(request.scheduled_ns for request in record.requests) - due[0][0] * 1e9
        sent = sorted(
            (
                round((request.scheduled_ns - begins_ns) / 1e9, 6),
                plan.prompts[request.prompt_id].tag,
                len(request.token_ids),
            )
            for request in record.requests
            if request.phase is Phase.MEASURED
        )
        assert sent == expected


def test_a_warm_cache_shows_in_the_hit_rate_of_the_trace(tmp_path: Path) -> None:
    """The second launch of an arm is another engine, so its cache is cold again: every launch starts from nothing."""
    config = tmp_path / "study.yaml"
    text = CONFIG.read_text(encoding="utf-8")
    config.write_text(text.replace(" prompts/", f" {ROOT}/prompts/").replace(" examples/", f" {ROOT}/examples/"))
    _, cold = measured(config)
    assert cache_figures(Evidence(map(cell_data, cold)).frames) is None
    config.write_text(config.read_text(encoding="utf-8") + "cache: replay\n")
    _, warm = measured(config)
    told = cache_figures(Evidence(map(cell_data, warm)).frames)
    assert told is not None
    assert [(hits.arm, hits.num_launches) for hits in told.hits] == [("off", 2), ("mtp-k3", 2)]
    for hits in told.hits:
        asked = [request for record in warm if record.cell.arm == hits.arm for request in record.requests]
        cached = sum(request.cached_tokens or 0 for request in asked)
        assert cached > 0
        assert hits.hit_rate.value == pytest.approx(cached / sum(request.prompt_tokens for request in asked))
