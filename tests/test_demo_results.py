"""The committed study is what the README says it is, and its report can be rebuilt without an engine."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from specprof.columns import requests_of
from specprof.records import Phase
from specprof.store import Store
from tests.running import ROOT, figures, specprof

DEMO = ROOT / "results" / "demo"
TAGS, STREAMS = ("code", "json", "zh-prose"), (1, 2, 4, 8)


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return figures(DEMO)


def is_valid(cell: dict[str, Any]) -> bool:
    return all(gate["severity"] != "invalid" for gate in cell["gates"])


def test_every_content_ends_with_a_valid_figure_at_every_load(told: dict[str, Any]) -> None:
    valid = {(c["tag"], c["arm"], c["concurrency"]) for c in told["cells"] if c["protocol"] == "forced" and is_valid(c)}
    assert valid == {(tag, arm, n) for tag in TAGS for arm in ("off", "ngram-k4") for n in STREAMS}


def test_every_figure_of_the_brief_is_there(told: dict[str, Any]) -> None:
    gains = {(g["tag"], g["concurrency"]): g for g in told["gains"] if g["protocol"] == "forced"}
    assert set(gains) == {(tag, n) for tag in TAGS for n in STREAMS}
    for gain in gains.values():
        for name in ("throughput_off_tok_s", "throughput_on_tok_s", "batching_gain", "batching_gain_off"):
            assert gain[name]["value"] > 0
        for name in ("speculation_gain", "interaction"):
            assert gain[name]["low"] <= gain[name]["value"] <= gain[name]["high"]


def test_looping_text_was_caught_and_is_no_headline(told: dict[str, Any]) -> None:
    looping = [c for c in told["cells"] if c["protocol"] == "unpenalised" and c["arm"] != "off"]
    assert looping
    for cell in looping:
        assert any(gate["gate"] == 7 and gate["severity"] == "invalid" for gate in cell["gates"])
        assert cell["loops"]["num_requests_flagged"] >= 1
        assert cell["loops"]["tokens_per_engine_step_unflagged"]["value"] < cell["tokens_per_engine_step"]["value"]
    card = (DEMO / "card.json").read_text(encoding="utf-8")
    assert "unpenalised · " not in card.split('"headlines"')[1]


def test_the_predicted_wall_is_within_5_percent_at_the_median(told: dict[str, Any]) -> None:
    errors = [abs(c["prediction_error"]["value"]) for c in told["cells"] if c["stop"] == "forced"]
    assert statistics.median(errors) <= 0.05


def test_requests_and_server_agree_on_accepted_tokens_in_every_on_cell() -> None:
    checked = 0
    for data in Store.existing(DEMO).cells():
        if data.cell.speculative_config and data.before and data.after:
            own = sum(
                r.speculation.num_accepted
                for r in requests_of(data.requests)
                if r.phase is Phase.MEASURED and r.speculation
            )
            server = (data.after.num_accepted_tokens or 0) - (data.before.num_accepted_tokens or 0)
            assert server == pytest.approx(own, rel=0.005, abs=0.5), data.cell.key
            checked += 1
    assert checked >= 16


def test_no_prompt_was_read_from_a_cache() -> None:
    for data in Store.existing(DEMO).cells():
        assert all(r.cached_tokens == 0 for r in requests_of(data.requests)), data.cell.key


def test_the_report_is_rebuilt_from_the_records_alone(tmp_path: Path) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(DEMO, copy, ignore=shutil.ignore_patterns("report.*", "figures", "card.json"))
    assert specprof("report", copy).returncode == 0
    for name in ("report.md", "card.json"):
        assert (copy / name).read_bytes() == (DEMO / name).read_bytes(), name
    assert (copy / "report.html").stat().st_size > 100_000
    assert sorted(p.name for p in (copy / "figures").iterdir()) == sorted(p.name for p in (DEMO / "figures").iterdir())


def test_it_is_small_and_names_no_place_of_the_machine_it_was_run_on() -> None:
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5e6
    for path in files:
        if path.suffix in {".json", ".md", ".yaml", ".log"}:
            text = path.read_text(encoding="utf-8")
            assert "/root/" not in text, path
            assert "/home/" not in text, path
