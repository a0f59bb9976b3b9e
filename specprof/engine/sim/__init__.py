"""A simulated engine whose truth is known: the same seeded physics behind a real socket and on a virtual clock.

It imports the vocabulary (`records`, `errors`) and nothing of the wing that analyses: a formula used by both would
make a truth test a tautology.
"""

from specprof.engine.sim.machine import (
    Content,
    Drafter,
    Faults,
    ForeignTraffic,
    Hardware,
    Machine,
    Noise,
    Prefill,
    Scheduler,
    Speculation,
)
from specprof.engine.sim.presets import PRESETS, machine_of
from specprof.engine.sim.virtual import VirtualEngine, run_study

__all__ = [
    "PRESETS",
    "Content",
    "Drafter",
    "Faults",
    "ForeignTraffic",
    "Hardware",
    "Machine",
    "Noise",
    "Prefill",
    "Scheduler",
    "Speculation",
    "VirtualEngine",
    "machine_of",
    "run_study",
]
