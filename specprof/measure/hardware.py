"""The hardware under a study: what it is, per launch, and what it did, per cell: clocks, throttling, power, PCIe.

GPUs are read through NVIDIA's own library (nvidia-ml-py); where that, its driver or a GPU is absent, the facts say so.
A field that a card does not offer is None. Of the processor, psutil offers clock and temperature on some machines.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import psutil

from specprof.engine.nvml import cards
from specprof.records import EngineFacts, GpuReading, HardwareReading

PERIOD_S = 2.0
MAX_READINGS = 24  # of a cell: its beginning, its end, and evenly between
MIB = 1 << 20

# What NVML calls the reasons why a clock is below its maximum, in its own words; those of every idle card are left out.
THROTTLE_REASONS = {
    0x0000000000000004: "software power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}
_MAX_NVLINKS = 18
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")  # psutil's names of a processor's own


class Hardware:
    """The GPUs an engine may use, opened once, and the processor."""

    def __init__(self, visible: str | None = None) -> None:
        """`visible`: CUDA_VISIBLE_DEVICES of the engine, by which one study may use some cards of many."""
        found = cards()
        self._nvml, self._told = found.nvml, found.told
        self._handles = {i: card for i, card in found.handles.items() if self._is_visible(i, card, visible)}
        self.absent = found.absent or ("" if self._handles else "the driver lists no GPU that the engine may use")

    def facts(self) -> dict[str, Any]:
        """What the hardware is, for `EngineFacts.extra`: driver and cards, or why there is no GPU to tell of."""
        if self.absent:
            return {"gpus_absent": self.absent}
        return {
            "driver": self._told(self._nvml.nvmlSystemGetDriverVersion),
            "gpus": [self._card(index, handle) for index, handle in self._handles.items()],
        }

    def read(self) -> HardwareReading:
        """What it does at this moment. Takes a few milliseconds."""
        gpus = tuple(self._reading(index, handle) for index, handle in self._handles.items())
        return HardwareReading(time.perf_counter_ns(), gpus, _cpu_mhz(), _cpu_temperature_c())

    def _is_visible(self, index: int, handle: Any, visible: str | None) -> bool:
        if visible is None:
            return True
        named = [part.strip() for part in visible.split(",")]
        uuid = str(self._told(self._nvml.nvmlDeviceGetUUID, handle) or "")
        return str(index) in named or any(part and uuid.startswith(part) for part in named)

    def _card(self, index: int, handle: Any) -> dict[str, Any]:
        nvml, told = self._nvml, self._told
        memory = told(nvml.nvmlDeviceGetMemoryInfo, handle)
        limit_mw = told(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return {
            "index": index,
            "name": told(nvml.nvmlDeviceGetName, handle),
            "memory_mib": memory and memory.total // MIB,
            "max_sm_clock_mhz": told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": limit_mw and limit_mw / 1000,
            "max_pcie_generation": told(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "max_pcie_width": told(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            "active_nvlinks": sum(
                told(nvml.nvmlDeviceGetNvLinkState, handle, link) == nvml.NVML_FEATURE_ENABLED
                for link in range(_MAX_NVLINKS)
            ),
        }

    def _reading(self, index: int, handle: Any) -> GpuReading:
        nvml, told = self._nvml, self._told
        power_mw, used = told(nvml.nvmlDeviceGetPowerUsage, handle), told(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = told(nvml.nvmlDeviceGetMemoryInfo, handle)
        return GpuReading(
            index=index,
            busy_percent=used and used.gpu,
            memory_used_mib=memory and memory.used // MIB,
            sm_clock_mhz=told(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=told(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            throttled=_reasons(told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)),
            power_w=power_mw and power_mw / 1000,
            temperature_c=told(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            pcie_generation=told(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_width=told(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        )


class HardwareWatch:
    """Reads the hardware while one cell runs. `hardware` None: the engine is simulated or runs elsewhere."""

    def __init__(self, hardware: Hardware | None, period_s: float = PERIOD_S) -> None:
        self._hardware = hardware
        self._period_s = period_s
        self._readings: list[HardwareReading] = []

    async def run(self) -> None:
        """Read until cancelled, in a thread of its own: the client's loop must not wait for a driver."""
        while self._hardware is not None:
            self._readings.append(await asyncio.to_thread(self._hardware.read))
            await asyncio.sleep(self._period_s)

    def readings(self) -> tuple[HardwareReading, ...]:
        """What was read, thinned to a few; empty where neither GPU nor processor tells anything."""
        told = [reading for reading in self._readings if reading.gpus or reading.cpu_mhz or reading.cpu_temperature_c]
        return tuple(_thinned(told))


def hardware_of(facts: EngineFacts) -> Hardware | None:
    """The hardware this engine runs on; None for one that is simulated or runs elsewhere."""
    if facts.kind != "vllm":
        return None
    return _opened(facts.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")))


def with_hardware(facts: EngineFacts) -> EngineFacts:
    """The facts of a launch, with those of the hardware under it."""
    hardware = hardware_of(facts)
    return facts if hardware is None else replace(facts, extra={**facts.extra, "hardware": hardware.facts()})


@cache
def _opened(visible: str | None) -> Hardware:
    """Opened once: a study has hundreds of cells."""
    return Hardware(visible)


def _reasons(bits: int | None) -> tuple[str, ...]:
    return tuple(words for bit, words in THROTTLE_REASONS.items() if (bits or 0) & bit)


def _thinned(readings: Sequence[HardwareReading]) -> Iterator[HardwareReading]:
    """The first, the last, and evenly between."""
    most = len(readings) - 1
    if most < MAX_READINGS:
        yield from readings
        return
    yield from (readings[round(i * most / (MAX_READINGS - 1))] for i in range(MAX_READINGS))


def _cpu_mhz() -> float | None:
    try:
        clock = psutil.cpu_freq()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):
        return None
    return clock.current if clock is not None and clock.current else None


def _cpu_temperature_c() -> float | None:
    sensors: Callable[[], Mapping[str, Any]] | None = getattr(psutil, "sensors_temperatures", None)
    try:
        found = sensors() if sensors is not None else {}
    except (OSError, RuntimeError):
        return None
    told = [one.current for name in _SENSORS for one in found.get(name, ())]
    return max(told, default=None)
