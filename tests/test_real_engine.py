"""The whole path on a real vLLM: known truths come back, and whatever dies is named, cleaned up and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specprof.columns import requests_of
from specprof.store import Store
from specprof.study.engines import VllmEngine
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT, figures, gone, measured_study, sealed, specprof, started, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

DRAFT_TOKENS = 3
TOKENS = 48

# SmolLM2 with four drafters: none, n-gram, itself (every guess right) and random weights (every guess wrong).
ORACLE = f"""
study: oracle
engine:
  kind: vllm
  model: builtin:smollm2-135m
  args: {{max_model_len: 1024, max_num_seqs: 8, dtype: float32}}
arms:
  "off": {{}}
  ngram:
    speculative_config: {{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}}
  itself:
    speculative_config:
      {{method: draft_model, model: "builtin:smollm2-135m", num_speculative_tokens: {DRAFT_TOKENS}}}
  random:
    speculative_config:
      {{method: draft_model, model: "random:builtin:smollm2-135m", num_speculative_tokens: {DRAFT_TOKENS}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {TOKENS}}}}}
concurrency: [1, 4]
prompts: 8
format: chat
"""

TWO_CELLS = """
study: two-cells
engine: {{kind: vllm, model: "{model}", args: {{max_model_len: 1024, max_num_seqs: 4}}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 96}}}}
concurrency: [1, 2]
prompts: 4
format: chat
"""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle study, really run."""
    return measured_study(tmp_path_factory.mktemp("oracle"), "oracle", ORACLE)


@pytest.fixture(scope="module")
def told(oracle: Path) -> dict[str, Any]:
    """What `report --format json` says of it."""
    return figures(oracle)


def cells(told: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    return [cell for cell in told["cells"] if cell["arm"] == arm]


def test_a_draft_that_is_the_target_is_always_right(told: dict[str, Any]) -> None:
    for cell in cells(told, "itself"):
        assert cell["acceptance_length"]["value"] == pytest.approx(DRAFT_TOKENS + 1, rel=0.01)
        assert cell["acceptance_rate"]["value"] >= 0.99
        assert any(gate["gate"] == 12 and gate["severity"] == "invalid" for gate in cell["gates"]), (
            "too good to publish"
        )


def test_a_draft_with_random_weights_is_never_right(told: dict[str, Any]) -> None:
    for cell in cells(told, "random"):
        assert cell["acceptance_rate"]["value"] <= 0.05
        assert cell["acceptance_length"]["value"] == pytest.approx(1.0, abs=0.15)


def test_a_controlled_run_finds_nothing_in_the_prefix_cache(oracle: Path, told: dict[str, Any]) -> None:
    """METHOD 2: off, and verified by what requests and counters say; gate 5 has neither a hit nor a doubt."""
    measured = Store.existing(oracle).cells()
    assert all(request.cached_tokens == 0 for data in measured for request in requests_of(data.requests))
    counters = [data.after for data in Store.existing(oracle).cells() if data.after is not None]
    assert counters
    assert not any(after.prefix_cache_hits for after in counters)
    assert not [gate for cell in told["cells"] for gate in cell["gates"] if gate["gate"] == 5]


def test_the_off_arm_has_no_acceptance_at_all(told: dict[str, Any]) -> None:
    for cell in cells(told, "off"):
        assert cell["acceptance_length"] is None
        assert cell["acceptance_counts"] is None
        assert cell["survival"] == []
        assert cell["tokens_per_engine_step"]["value"] == pytest.approx(1.0, abs=0.01)


def test_speculation_leaves_greedy_text_alone(oracle: Path, told: dict[str, Any]) -> None:
    """On at least 95% of the prompts, in float32; the first divergence is named."""
    written: dict[str, dict[str, tuple[int, ...]]] = {}
    for data in Store.existing(oracle).cells():
        if data.cell.protocol == "forced" and data.cell.concurrency == 1:
            written[data.cell.arm] = {r.prompt_id: r.token_ids for r in requests_of(data.requests)}
    differ = {
        name: next(i for i, (a, b) in enumerate(zip(ids, written["ngram"][name], strict=True)) if a != b)
        for name, ids in written["off"].items()
        if ids != written["ngram"][name]
    }
    assert len(differ) <= 0.05 * len(written["off"]), f"first differing token by prompt: {differ}"
    for cell in cells(told, "ngram"):
        assert not any(gate["gate"] == 8 and gate["severity"] == "invalid" for gate in cell["gates"])


def test_requests_and_server_count_the_same_accepted_tokens(oracle: Path) -> None:
    checked = 0
    for data in Store.existing(oracle).cells():
        if data.cell.speculative_config and data.before and data.after and data.after.num_accepted_tokens is not None:
            measured = [r for r in requests_of(data.requests) if r.phase.value == "measured" and r.speculation]
            own = sum(r.speculation.num_accepted for r in measured if r.speculation)
            server = data.after.num_accepted_tokens - (data.before.num_accepted_tokens or 0)
            assert server == pytest.approx(own, rel=0.005, abs=0.5)
            checked += 1
    assert checked >= 6


def test_arms_differ_by_the_speculative_flags_alone(oracle: Path) -> None:
    def without_speculation(argv: tuple[str, ...]) -> list[str]:
        drop = {"--speculative-config", "--per-request-spec-decode-metrics", "--port"}
        return [a for i, a in enumerate(argv) if a not in drop and (i == 0 or argv[i - 1] not in drop)]

    facts = Store.existing(oracle).facts().values()
    assert len(facts) == 4
    assert len({tuple(without_speculation(f.argv)) for f in facts}) == 1
    assert len({tuple(sorted(f.env.items())) for f in facts}) == 1
    assert all(f.version and f.torch_version and f.model_hash for f in facts)


@pytest.fixture
def two_cells(tmp_path: Path) -> Path:
    path = tmp_path / "two-cells.yaml"
    path.write_text(TWO_CELLS.format(model="builtin:smollm2-135m", root=ROOT))
    return path


def engine_processes() -> Iterator[psutil.Process]:
    """Every process of a vLLM on this machine."""
    for process in psutil.process_iter(["cmdline", "name"]):
        line = " ".join(process.info["cmdline"] or [])
        if "specprof.engine.serve" in line or "VLLM" in (process.info["name"] or "") or "VLLM" in line:
            yield process


def test_every_suite_passes_the_linter_under_the_model_s_own_tokenizer() -> None:
    suites = sorted((ROOT / "prompts").glob("*.jsonl"))
    checked = specprof("prompts", "check", *suites, "--model", "builtin:gemma-3-270m", "--max-tokens", "7000")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count(", 0 findings") == len(suites) >= 8


def test_a_model_that_cannot_be_loaded_is_named_long_before_the_start_is_given_up(tmp_path: Path) -> None:
    path, model = tmp_path / "wrong.yaml", tmp_path / "wrong-model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "no-such-model", "architectures": ["NoSuchModel"]}')
    path.write_text(TWO_CELLS.format(model=model, root=ROOT))
    engine = load_study(path).engine
    assert isinstance(engine, VllmEngine)
    run = specprof("run", path, "--results", tmp_path, timeout_s=engine.start_timeout_s / 2)
    assert run.returncode == 3, run.stdout + run.stderr
    assert "Cause:" in run.stderr
    assert "engine.log" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_folder_without_a_model_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    (tmp_path / "empty-model").mkdir()
    path.write_text(TWO_CELLS.format(model=tmp_path / "empty-model", root=ROOT))
    run = specprof("run", path, "--results", tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "is not a model folder" in run.stderr
    assert not list(tmp_path.rglob("engine.log"))


def test_killed_engine_and_killed_run_lose_only_the_cell_in_progress(two_cells: Path, tmp_path: Path) -> None:
    """An engine killed mid-cell, then specprof itself killed mid-cell, then a run that finishes what is left."""
    results = tmp_path / "two-cells"
    others = {process.pid for process in engine_processes()}

    with started("run", two_cells, "--results", tmp_path) as run:
        wait_until(lambda: len(sealed(results)) >= 1, timeout_s=300)
        family = run.family()
        mine = [process for process in engine_processes() if process.pid not in others]
        assert mine
        for process in mine:
            process.kill()
        output = run.ended()
    assert run.process.returncode == 3, output
    assert "Cause:" in output
    assert "engine.log" in output
    assert gone(family)
    first = sealed(results)
    assert first

    with started("run", two_cells, "--results", tmp_path) as run:
        wait_until(lambda: len(sealed(results)) > len(first), timeout_s=300)
        family = run.family()
        run.kill()
        assert gone(family, timeout_s=60), "an engine outlived kill -9 of specprof"
    second = sealed(results)
    assert first.items() <= second.items()

    finished = specprof("run", two_cells, "--results", tmp_path)
    assert finished.returncode == 0, finished.stderr
    third = sealed(results)
    assert second.items() <= third.items()
    assert set(third) == {cell.key for cell in make_plan(load_study(two_cells)).cells}
