"""How much slower than nominal a step is, at each instant of a launch, and when it may start at all."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from specprof.engine.sim.chance import key, normal
from specprof.engine.sim.machine import Machine


class Pace:
    """How much slower than nominal a step is: the launch's own luck, warm-up, drift, and step noise."""

    _BLOCK = 1024

    def __init__(self, machine: Machine, launch_index: int) -> None:
        self._noise = machine.noise
        faults = machine.faults
        self._freeze = (inf if faults.freeze_at_s is None else faults.freeze_at_s, faults.freeze_s)
        self._launch_factor = float(np.exp(machine.noise.launch_sigma * normal(machine.seed, "launch", launch_index)))
        self._rng = np.random.default_rng(key(machine.seed, "pace", launch_index))
        self._draws: list[float] = []
        self.factor: Callable[[float], float] = self._varying if self._varies else self._steady

    @property
    def _varies(self) -> bool:
        noise = self._noise
        return bool(noise.step_sigma or noise.drift_per_minute or noise.warmup_extra)

    def _steady(self, at_s: float) -> float:
        return self._launch_factor

    def _varying(self, at_s: float) -> float:
        noise = self._noise
        if not self._draws:
            self._draws = np.exp(noise.step_sigma * self._rng.standard_normal(self._BLOCK)).tolist()
        factor = self._launch_factor * self._draws.pop() * (1.0 + noise.drift_per_minute * at_s / 60.0)
        if noise.warmup_extra and at_s < 20.0 * noise.warmup_tau_s:
            factor *= 1.0 + noise.warmup_extra * float(np.exp(-at_s / noise.warmup_tau_s))
        return factor

    def starts_at(self, at_s: float) -> float:
        """When a step that would start at `at_s` really does: a frozen engine starts none until it wakes."""
        frozen_at_s, frozen_s = self._freeze
        return frozen_at_s + frozen_s if frozen_at_s <= at_s < frozen_at_s + frozen_s else at_s
