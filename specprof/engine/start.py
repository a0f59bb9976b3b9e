"""Starts whichever kind of engine a study names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from specprof.engine.protocol import Engine
from specprof.records import Launch
from specprof.study.attach import AttachEngine
from specprof.study.engines import EngineSpec, SimEngine, VllmEngine


def start(
    spec: EngineSpec, launch: Launch, folder: Path, on_progress: Callable[[str], None]
) -> AbstractContextManager[Engine]:
    """An engine ready for requests, its log in `folder`; gone when the block ends, however it ends.

    The launch's own arguments are laid over the study's.
    """
    match spec:
        case VllmEngine():
            from specprof.engine import vllm

            own = spec.model_copy(update={"args": {**spec.args_by_name, **launch.engine_args}})
            return vllm.start(own, speculative_config=launch.speculative_config, folder=folder, on_progress=on_progress)
        case SimEngine():
            from specprof.engine.sim import engine as sim
            from specprof.engine.sim.presets import machine_of

            return sim.start(
                machine_of(spec.preset, spec.parameters),
                speculative_config=launch.speculative_config,
                engine_args=launch.engine_args,
                launch_index=launch.index,
                time_scale=spec.time_scale,
                log=folder / "engine.log",
            )
        case AttachEngine():
            from specprof.engine import attach

            return attach.start(spec, launch, folder=folder, on_progress=on_progress)
