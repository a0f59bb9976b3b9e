"""The hardware's facts and readings: from a planted NVML, and from this machine as it is."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from specprof.measure import hardware
from specprof.measure.hardware import MAX_READINGS, Hardware, HardwareWatch, hardware_of, with_hardware
from specprof.records import EngineFacts, HardwareReading


class PlantedNvml:
    """NVML of mining cards as in seed 000: x4 slots of PCIe 2.0, no NVLink; card 1 hot, card 2 mute in part.

    Names, units (milliwatts, bytes, percent) and constants are those of nvidia-ml-py's pynvml.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_FEATURE_ENABLED = 1, 2, 0, 1

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.count:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": lambda: "575.51.03",
            "nvmlDeviceGetName": lambda card: b"NVIDIA CMP 170HX",
            "nvmlDeviceGetUUID": lambda card: f"GPU-{card}abc",
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=64 << 30, used=(40 + card) << 30),
            "nvmlDeviceGetMaxClockInfo": lambda card, kind: 1410 if kind == self.NVML_CLOCK_SM else 1458,
            "nvmlDeviceGetClockInfo": lambda card, kind: 1140 if kind == self.NVML_CLOCK_SM else 1458,
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: 250_000,
            "nvmlDeviceGetPowerUsage": lambda card: 181_500,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: 4,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda card: 4,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: 2,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda card: 4,
            "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=97, memory=60),
            "nvmlDeviceGetTemperature": lambda card, sensor: (61, 84, 66)[card],
            # 0x1: nothing to do; 0x20: software thermal slowdown; 0x4: software power cap
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: (0x1, 0x24, 0x4)[card],
        }
        if name not in answers:
            return self._unsupported
        return answers[name]

    def _unsupported(self, *_: Any) -> Any:
        raise self.NVMLError("Not Supported")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> PlantedNvml:
    nvml = PlantedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    hardware._opened.cache_clear()
    return nvml


def test_facts_say_what_the_cards_and_their_links_are(planted: PlantedNvml) -> None:
    facts = Hardware().facts()
    assert facts["driver"] == "575.51.03"
    assert len(facts["gpus"]) == 3
    assert facts["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA CMP 170HX",
        "memory_mib": 65_536,
        "max_sm_clock_mhz": 1410,
        "max_memory_clock_mhz": 1458,
        "power_limit_w": 250.0,
        "max_pcie_generation": 4,
        "max_pcie_width": 4,
        "active_nvlinks": 0,
    }


def test_a_reading_says_what_they_do(planted: PlantedNvml) -> None:
    reading = Hardware().read()
    hot = reading.gpus[1]
    assert (hot.sm_clock_mhz, hot.power_w, hot.temperature_c, hot.busy_percent) == (1140, 181.5, 84, 97)
    assert (hot.pcie_generation, hot.pcie_width, hot.memory_used_mib) == (2, 4, 41 * 1024)
    assert hot.throttled == ("software power cap", "software thermal slowdown")
    assert reading.gpus[0].throttled == ()


def test_what_a_card_does_not_offer_is_none(planted: PlantedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlantedNvml, "nvmlDeviceGetPowerUsage", planted._unsupported, raising=False)
    assert Hardware().read().gpus[0].power_w is None


@pytest.mark.parametrize(
    ("visible", "cards"), [("2", [2]), ("0,1", [0, 1]), ("GPU-1a", [1]), ("", []), (None, [0, 1, 2])]
)
def test_only_the_cards_the_engine_may_use_are_read(
    planted: PlantedNvml, visible: str | None, cards: list[int]
) -> None:
    assert [gpu.index for gpu in Hardware(visible).read().gpus] == cards


def test_without_a_driver_the_facts_say_so(planted: PlantedNvml) -> None:
    planted.count = 0
    assert Hardware().facts() == {"gpus_absent": "no NVIDIA driver: Driver Not Loaded"}
    assert Hardware().read().gpus == ()


def test_without_the_library_they_say_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Hardware().facts() == {"gpus_absent": "nvidia-ml-py is not installed, so nobody looked"}


def test_this_machine_as_it_is() -> None:
    """No double: with a GPU it has a name, without one the facts say why."""
    here = Hardware()
    facts = here.facts()
    assert ("gpus" in facts) is not bool(facts.get("gpus_absent"))
    for card in facts.get("gpus", ()):
        assert card["name"] and card["memory_mib"] > 0
    reading = here.read()
    assert len(reading.gpus) == len(facts.get("gpus", ()))
    assert reading.cpu_mhz is None or reading.cpu_mhz > 0


def engine_facts(kind: str = "vllm", **changes: Any) -> EngineFacts:
    return EngineFacts(kind, "vllm", "0.32.0", "model", "hash", **changes)


def test_facts_of_a_launch_carry_those_of_its_cards(planted: PlantedNvml) -> None:
    told = with_hardware(engine_facts(env={"CUDA_VISIBLE_DEVICES": "1"}, device="cuda", extra={"dtype": "float16"}))
    assert told.extra["dtype"] == "float16"
    assert [card["index"] for card in told.extra["hardware"]["gpus"]] == [1]


def test_a_simulated_engine_has_no_hardware() -> None:
    assert hardware_of(engine_facts("sim")) is None
    assert with_hardware(engine_facts("sim")) == engine_facts("sim")


def watched(hardware: Hardware | None, num_readings: int) -> tuple[HardwareReading, ...]:
    """What a watch read in the time of about so many readings."""

    async def watch() -> tuple[HardwareReading, ...]:
        watching = HardwareWatch(hardware, period_s=0.001)
        task = asyncio.create_task(watching.run())
        while len(watching._readings) < num_readings:  # noqa: ASYNC110 - the watch tells nobody when it reads
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return watching.readings()

    return asyncio.run(watch())


def test_a_long_cell_keeps_a_few_readings_in_time_order(planted: PlantedNvml) -> None:
    readings = watched(Hardware(), 100)
    assert len(readings) == MAX_READINGS
    instants = [reading.at_ns for reading in readings]
    assert instants == sorted(set(instants))


def test_a_short_cell_keeps_all(planted: PlantedNvml) -> None:
    assert 1 <= len(watched(Hardware(), 2)) < MAX_READINGS


def test_nothing_is_read_where_there_is_nothing() -> None:
    assert watched(None, 0) == ()
