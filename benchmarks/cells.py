"""The cells that simulated studies of the benchmarks are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specprof.records import Cell, Role, Sampling, Stop


def forced_cell(
    arm: str,
    speculation: Mapping[str, Any] | None,
    block: int,
    streams: int,
    prompt_ids: Sequence[str],
    *,
    tokens: int,
    num_warmup: int = 0,
    warmup_tokens: int = 0,
) -> Cell:
    """Forced completions of one content, `tokens` each."""
    return Cell(
        key=f"b{block}-{arm}-n{streams}",
        role=Role.FIGURE,
        block=block,
        arm=arm,
        speculative_config=speculation,
        tag="code",
        protocol="forced",
        stop=Stop.FORCED,
        max_tokens=tokens,
        mask_eos=False,
        concurrency=streams,
        prompt_ids=tuple(prompt_ids),
        num_warmup=num_warmup,
        warmup_tokens=warmup_tokens,
        chat=False,
        guided=False,
        sampling=Sampling(),
        suite_hash="",
        engine_hash="",
    )
