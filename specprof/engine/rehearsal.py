"""A vLLM plugin that lets the CPU engine walk through pipeline parallelism with speculation: a rehearsal, no figure.

vLLM's CPU runner keeps a drafter on the last stage alone, and its first stages then fail on the attribute they lack.
It also loses track of drafts once several batches are under way. Here every stage gets something in the drafter's
place, and one batch is under way at a time. That takes the pipeline's overlap away, so a study's arms all carry the
plugin, and what it measures is how the procedure goes, never how fast a pipeline is.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`); it does nothing unless the study
says `engine: {rehearsal: true}`, which sets `SPECPROF_REHEARSAL=1` in the engine's environment.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

VARIABLE = "SPECPROF_REHEARSAL"
GROUP, NAME = "vllm.general_plugins", "specprof_rehearsal"
STAMP = "rehearsal: not a pipeline figure"


def register() -> None:
    """Prepare this process, once, however often vLLM asks."""
    if os.environ.get(VARIABLE) == "1":
        _one_batch_at_a_time()
        _drafter_on_every_stage()


def is_installed() -> bool:
    """Whether vLLM will find the plugin: an environment made before it existed does not know of it."""
    return any(point.name == NAME for point in metadata.entry_points(group=GROUP))


class IdleDrafter:
    """What a stage that drafts nothing holds in the drafter's place: there is nothing to load and nothing to run."""

    def load_model(self, target_model: Any) -> None:
        """A drafter of the last stage alone has nothing to load here."""


def _one_batch_at_a_time() -> None:
    from vllm.config import VllmConfig

    VllmConfig.max_concurrent_batches = property(lambda _config: 1)


def _drafter_on_every_stage() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # the CPU runner is made of it

    if hasattr(GPUModelRunner, "drafter"):
        return
    GPUModelRunner.drafter = IdleDrafter()  # the last stage puts its own in front of it
