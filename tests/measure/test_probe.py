"""The probe on this machine: real memory, real matrices, and a name for what was measured."""

from __future__ import annotations

import time

import psutil
import pytest

from specprof.errors import InputError
from specprof.measure import probe as probing
from specprof.measure.probe import Trial, probe

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def found():
    return probe("cpu", budget_s=1.0)


def test_every_kind_is_tried_and_the_best_is_the_ceiling(found):
    assert {trial.kind for trial in found.trials} == {"copy", "matrix-vector", "matmul"}
    assert all(trial.runs >= 1 for trial in found.trials)
    assert found.bandwidth == max(t.rate for t in found.trials if t.kind != "matmul")
    assert found.flops == max(t.rate for t in found.trials if t.kind == "matmul")
    assert found.memory == psutil.virtual_memory().total


def test_ceilings_are_those_of_a_computer(found):
    """Between the memory of a 1990s workstation and that of an H200, even on a busy machine."""
    assert 1e8 < found.bandwidth < 5e12
    assert 1e8 < found.flops < 1e15


def test_the_source_says_what_was_measured(found):
    assert found.source.startswith("measured here: ")
    assert "best of" in found.source
    assert f"torch {torch.__version__} on cpu" in found.source


@pytest.mark.parametrize(
    ("job", "size", "moved"),
    [
        # 64 MiB are read and written by a copy, read by a matrix-vector product.
        (probing._copy, {"num_bytes": 64 << 20}, 2 * (64 << 20)),
        (probing._matrix_vector, {"num_bytes": 64 << 20}, 64 << 20),
        (probing._matmul, {"dtype": torch.float32, "size": 64}, 2 * 64**3),
    ],
)
def test_a_rate_is_work_over_time(monkeypatch, job, size, moved):
    """Every run takes exactly a quarter of a second here."""
    monkeypatch.setattr(probing, "_best", lambda *_: (0.25, 7))
    trial = job(torch, "cpu", **size, budget_s=0.0)
    assert (trial.rate, trial.runs) == (4 * moved, 7)


def test_the_shortest_run_counts_and_the_first_does_not(monkeypatch):
    """A clock that tells when the work began and ended: a warm-up, then runs of 3, 1 and 2 s within 7 s."""
    now = [0.0]
    lengths = iter([100.0, 3.0, 1.0, 2.0, 2.0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work():
        now[0] += next(lengths)

    assert probing._best(torch, "cpu", work, 6.0) == (1.0, 3)


def test_on_a_machine_too_busy_for_it_the_small_sizes_are_tried_all_the_same(monkeypatch):
    for kind in ("_copy", "_matrix_vector", "_matmul"):
        monkeypatch.setattr(probing, kind, lambda *_, **sizes: Trial("x", "", str(sizes), 1, 1.0))
    monkeypatch.setattr(probing, "_MEMORY_JOBS", (probing._copy, probing._matrix_vector))
    assert len(list(probing._trials(torch, "cpu", 0.0))) == 4


def test_no_gpu_no_gpu_probe(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU"):
        probe("cuda")
