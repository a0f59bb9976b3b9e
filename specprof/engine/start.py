"""Starts whichever kind of engine a study names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from specprof.engine.protocol import Engine
from specprof.records import Launch
from specprof.study.config import SimEngine, VllmEngine


def start(
    spec: VllmEngine | SimEngine, launch: Launch, folder: Path, on_progress: Callable[[str], None]
) -> AbstractContextManager[Engine]:
    """An engine ready for requests, its log in `folder`; gone when the block ends, however it ends."""
    match spec:
        case VllmEngine():
            from specprof.engine import vllm

            return vllm.start(
                spec, speculative_config=launch.speculative_config, folder=folder, on_progress=on_progress
            )
        case SimEngine():
            from specprof.engine.sim import engine as sim
            from specprof.engine.sim.presets import machine_of

            return sim.start(
                machine_of(spec.preset, spec.parameters),
                speculative_config=launch.speculative_config,
                launch_index=launch.index,
                time_scale=spec.time_scale,
                log=folder / "engine.log",
            )
