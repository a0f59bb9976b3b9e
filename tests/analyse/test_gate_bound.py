"""Gate 12 against the roofline: planted throughputs on a machine whose bound is done by hand."""

from __future__ import annotations

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.gates.bound import reading_time_s
from specprof.analyse.hardware import hardware
from specprof.analyse.study import analyse
from tests.factory import make_running_cell

# 50 GB of weights at 3.35 TB/s are read in 14.925 ms, so 4 streams that gain a token a step write 268 tok/s at most.
STEP_BYTES = 50_000_000_000
BOUND = 4 / (50 / 3350)


def environment(gpu="NVIDIA H100 80GB HBM3", **extra):
    return {"gpus": [{"name": gpu}], "launches": {"0": {"extra": {"step_bytes": STEP_BYTES, **extra}}}}


def findings(throughput, told):
    (cell,) = analyse("x", Evidence([make_running_cell(throughput)]), told).cells
    return [gate for gate in cell.gates if gate.name == "above the roofline"]


def test_more_than_reading_the_weights_allows_is_impossible():
    (gate,) = findings(1.2 * BOUND, environment())
    assert (gate.gate, gate.severity) == (12, "invalid")
    assert "allows 268.0" in gate.evidence


def test_below_the_bound_is_fine():
    assert not findings(0.9 * BOUND, environment())


def test_tensor_parallelism_adds_bandwidth_and_a_pipeline_does_not():
    assert not findings(1.2 * BOUND, environment(tensor_parallel_size=2))
    assert findings(1.2 * BOUND, environment(pipeline_parallel_size=2))


@pytest.mark.parametrize(
    "told", [{}, environment("A card nobody listed"), environment(step_bytes=None), {"gpus": [], "launches": {}}]
)
def test_an_unknown_machine_or_model_has_no_bound(told):
    assert reading_time_s(told, 0) is None
    assert not findings(1e6, told)


@pytest.mark.parametrize(
    ("driver_says", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", None),  # another memory, no row: a bound that may be wrong is none
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_row_is_found_only_where_it_is_certain(driver_says, row):
    found = hardware(driver_says)
    assert (found and found.name) == row
