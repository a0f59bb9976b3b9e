"""A study with a warm prefix cache, measured over a real socket: its hit rate is printed and stands beside no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specprof.analyse.audit.importers import read_claims
from specprof.analyse.cache import cache_figures
from specprof.analyse.evidence import Evidence
from specprof.columns import requests_of
from specprof.records import Phase, Role
from specprof.store import Store
from tests.running import ROOT, specprof

STUDY = f"""\
study: NAME
engine: {{kind: sim, preset: small, time_scale: 20}}
arms: {{"off": {{}}, k4: {{speculative_config: {{method: mtp, num_speculative_tokens: 4}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 32}}}}
concurrency: [1, 4]
prompts: 8
cache: POLICY
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study under both policies, measured and reported."""
    folder = tmp_path_factory.mktemp("cache")
    for policy in ("controlled", "replay"):
        config = folder / f"{policy}.yaml"
        config.write_text(STUDY.replace("NAME", policy).replace("POLICY", policy), encoding="utf-8")
        done = specprof("run", config, "--results", folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_hit_rate_is_what_the_requests_say_of_themselves(results: Path) -> None:
    """The counters' rate against the cached tokens that every answer reports, two countings by the server."""
    cells = [data for data in Store.existing(results / "replay").cells() if data.cell.role is Role.FIGURE]
    told = cache_figures(Evidence(cells).frames)
    assert told is not None
    assert len(told.hits) == len(cells) == 4
    for data in cells:
        asked = [request for request in requests_of(data.requests) if request.phase is Phase.MEASURED]
        cached = sum(request.cached_tokens or 0 for request in asked)
        (hits,) = (h for h in told.hits if (h.arm, h.concurrency) == (data.cell.arm, data.cell.concurrency))
        assert hits.hit_rate.value == pytest.approx(cached / sum(request.prompt_tokens for request in asked))


def test_the_cache_is_warm_from_the_second_cell_on(results: Path) -> None:
    """Prompts of a later cell were all sent before; only what is beyond a prompt's last full block is read again."""
    cells = [data for data in Store.existing(results / "replay").cells() if data.cell.role is Role.FIGURE]
    last = {data.launch: data for data in sorted(cells, key=lambda data: data.started_at)}
    for data in last.values():
        for request in requests_of(data.requests):
            assert 0 < request.prompt_tokens - (request.cached_tokens or 0) <= 32


def test_a_controlled_study_has_no_hits_and_no_section(results: Path) -> None:
    for data in Store.existing(results / "controlled").cells():
        assert all(request.cached_tokens == 0 for request in requests_of(data.requests))
    assert "cache" not in json.loads((results / "controlled" / "card.json").read_text(encoding="utf-8"))
    assert "refix cache" not in (results / "controlled" / "report.md").read_text(encoding="utf-8").split("## Envi")[0]


def test_replayed_figures_carry_the_warm_cache_wherever_they_go(results: Path) -> None:
    report = (results / "replay" / "report.md").read_text(encoding="utf-8")
    (engine,) = (line for line in report.splitlines() if line.startswith("Engine: "))
    assert "warm prefix cache" in engine
    tables = [line for line in report.splitlines() if line.startswith("### ") and "simulated engine" in line]
    assert len(tables) >= 5
    assert all(line.endswith("warm prefix cache") for line in tables)
    assert "## Prefix cache" in report
    page = (results / "replay" / "report.html").read_text(encoding="utf-8")
    assert 'id="cache"' in page
    card = json.loads((results / "replay" / "card.json").read_text(encoding="utf-8"))
    assert card["cache"]["policy"] == "replay"
    assert all("warm prefix cache" in headline["context"] for headline in card["headlines"])
    assert not any(gate["gate"] == 5 for cell in card["cells"] for gate in cell["gates"])


def test_the_terminal_prints_the_hit_rate(results: Path) -> None:
    told = specprof("report", results / "replay")
    assert told.returncode == 0, told.stderr
    assert "of the prompt tokens came from the prefix cache" in " ".join(told.stdout.split())


@pytest.mark.parametrize("options", [(), ("--allow", "settings")])
def test_compare_refuses_a_warm_cache_beside_none(results: Path, options: tuple[str, ...]) -> None:
    told = specprof("compare", results / "controlled", results / "replay", *options)
    assert told.returncode == 2
    assert "cache: controlled" in told.stderr
    assert "cache: replay" in told.stderr
    assert "Measure both under one policy" in " ".join(told.stderr.split())


def test_an_auditor_is_told_that_the_cache_was_on(results: Path) -> None:
    cards = [results / policy / "card.json" for policy in ("controlled", "replay")]
    told = [{claim.prefix_cache for claim in read_claims(card) if claim.concurrency} for card in cards]
    assert True not in told[0]
    assert told[1] == {True}
