"""How fast prompts are read, METHOD 3: one long prompt alone, and N short ones at once, with one output token each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from specprof.analyse import gates, stats
from specprof.analyse.evidence import Evidence, Key, Series
from specprof.analyse.gates.found import LaunchFindings, each_once
from specprof.analyse.results import Figure, GateFinding, Severity
from specprof.records import Role

ALONE, TOGETHER = "one long prompt alone", "short prompts at once"


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    """Reading speed, tok/s, in one `shape`: "one long prompt alone", or "short prompts at once".

    The interval holds launches alone: how other prompts would differ is not in it, and one long prompt cannot show it.
    """

    tag: str
    arm: str
    shape: str
    concurrency: int
    prompt_tokens: Figure
    speed_tok_s: Figure
    gates: tuple[GateFinding, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether no gate forbids to rely on it."""
        return not any(gate.severity is Severity.INVALID for gate in self.gates)


def prefill_figures(
    evidence: Evidence, of_launch: LaunchFindings, limits: Mapping[int, gates.Limits]
) -> list[PrefillFigures]:
    """Every reading speed of a study whose server says how long the prompts were that it read."""
    return [
        _figures(key, series, each_once(_findings(key, series, evidence, of_launch, limits)))
        for key, series in evidence.series_of(Role.PREFILL)
        if all(frame.requests.prompt_tokens.sum() > 0 for frame in series.frames)
    ]


def _figures(key: Key, series: Series, found: tuple[GateFinding, ...]) -> PrefillFigures:
    tag, protocol, arm, concurrency = key
    speeds = [frame.requests.prompt_tokens.sum() / frame.wall_s for frame in series.frames]
    return PrefillFigures(
        tag=tag,
        arm=arm,
        shape=ALONE if protocol.endswith("-long") else TOGETHER,
        concurrency=concurrency,
        prompt_tokens=Figure(float(np.median(series.pooled("prompt_tokens")))),
        speed_tok_s=stats.log_mean(np.array(speeds)),
        gates=found,
    )


def _findings(
    key: Key, series: Series, evidence: Evidence, of_launch: LaunchFindings, limits: Mapping[int, gates.Limits]
) -> Iterator[GateFinding]:
    for frame in (*series.frames, *evidence.failed(key)):
        yield from gates.prefill_gates(frame, limits[frame.data.launch])
        yield from evidence.around(frame, of_launch)
