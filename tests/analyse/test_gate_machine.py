"""Gate 6 of the hardware: planted readings of cards that slow down, hold back, or hang on a narrow link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates import cell_gates, limits
from specprof.analyse.gates.machine import machine_gates, slower_clocks
from specprof.analyse.results import Severity
from specprof.analyse.study import analyse
from specprof.records import GpuReading, HardwareReading
from tests.factory import make_cell, make_data

CARD = {"index": 0, "name": "NVIDIA CMP 170HX", "max_pcie_generation": 2, "max_pcie_width": 16}


def watched(*gpus: GpuReading, **changes: Any) -> CellFrame:
    """A sound cell with one reading of one card after another."""
    readings = tuple(HardwareReading(at, (gpu,)) for at, gpu in enumerate(gpus))
    return CellFrame(replace(make_data(make_cell(**changes)), hardware=readings))


def gpu(clock: int = 1410, **changes: Any) -> GpuReading:
    plain = GpuReading(0, busy_percent=95, sm_clock_mhz=clock, temperature_c=60, pcie_generation=2, pcie_width=16)
    return replace(plain, **changes)


def names(frame: CellFrame) -> list[str]:
    return [found.name for found in machine_gates(frame, [CARD])]


def test_a_steady_card_passes() -> None:
    assert names(watched(*[gpu()] * 9)) == []


def test_a_clock_that_falls_by_more_than_two_percent_is_told() -> None:
    (found,) = machine_gates(watched(*[gpu(1410)] * 3, *[gpu(1400)] * 3, *[gpu(1365)] * 3), [CARD])
    assert (found.gate, found.severity) == (6, Severity.CAUTION)
    assert "from 1410 to 1365 MHz" in found.evidence
    assert names(watched(*[gpu(1410)] * 3, *[gpu(1400)] * 6)) == []


def test_a_throttled_card_is_told_with_reason_and_heat() -> None:
    hot = gpu(throttled=("software power cap", "hardware thermal slowdown"), temperature_c=91)
    (found,) = machine_gates(watched(gpu(), hot, hot, gpu()), [CARD])
    assert "in 2 of 4 readings: hardware thermal slowdown, at up to 91 °C" in found.evidence


def test_a_card_at_its_power_limit_is_at_work() -> None:
    assert names(watched(*[gpu(throttled=("software power cap",))] * 4)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pcie_width": 4}, "width 4 under load, where card and slot can do 16"),
        ({"pcie_generation": 1}, "generation 1"),
    ],
)
def test_a_link_below_what_it_can_do_is_told(change: dict[str, int], says: str) -> None:
    (found,) = machine_gates(watched(*[gpu(**change)] * 4), [CARD])
    assert (found.gate, found.name) == (6, "PCIe link")
    assert says in found.evidence


def test_one_reading_at_full_width_is_enough() -> None:
    """A link goes up when it is needed."""
    assert names(watched(*[gpu(pcie_width=4)] * 3, gpu())) == []


def test_an_idle_card_says_nothing() -> None:
    idle = gpu(210, busy_percent=0, pcie_generation=1, throttled=("hardware slowdown",))
    assert names(watched(*[idle] * 9)) == []


def test_a_slot_of_four_lanes_is_no_fault() -> None:
    """The seed's cards sit in slots of four lanes: card and slot together can do no more."""
    found = machine_gates(watched(*[gpu(pcie_width=4)] * 4), [{**CARD, "max_pcie_width": 4}])
    assert list(found) == []


def test_a_cell_slower_than_the_study_s_fastest_is_told_with_both_clocks() -> None:
    fast, slow = watched(*[gpu(1410)] * 4, tag="code"), watched(*[gpu(1305)] * 4, tag="json")
    found = slower_clocks([fast, slow])
    assert set(found) == {slow.cell.key}
    assert "1305 MHz, and at 1410" in found[slow.cell.key].evidence


def test_cell_gates_ask_the_launch_what_its_links_can_do() -> None:
    environment = {"launches": {"0": {"extra": {"hardware": {"driver": "575", "gpus": [CARD]}}}}}
    frame = watched(*[gpu(pcie_width=8)] * 4)
    found = [gate.name for gate in cell_gates(frame, None, limits(environment, 0)) if gate.gate == 6]
    assert found == ["PCIe link"]


def test_figures_carry_the_finding_and_rehearsals_are_never_fit() -> None:
    cells = [replace(make_data(make_cell(tag=tag)), hardware=watched(*[gpu(c)] * 4).data.hardware)
             for tag, c in (("code", 1410), ("json", 1305))]  # fmt: skip
    stamp = "rehearsal: not a pipeline figure"
    environment = {"launches": {"0": {"extra": {"rehearsal": stamp}}}}
    shown = {cell.tag: cell for cell in analyse("watched", Evidence(cells), environment).cells}
    assert "clock" in [gate.name for gate in shown["json"].gates]
    assert "clock" not in [gate.name for gate in shown["code"].gates]
    for cell in shown.values():
        (rehearsed,) = (gate for gate in cell.gates if gate.gate == 15)
        assert rehearsed.severity is Severity.INVALID and stamp in rehearsed.evidence
        assert not cell.valid
