"""Interference: what one long prompt does to those who are already writing, and what it waits itself (METHOD 2).

A prompt and the decoders' next tokens share an engine step. Read whole, it makes one step as long as its reading, and
every decoder waits for it; read in chunks, it makes many steps longer, and its own first token comes later. So three
times belong together: the longest gap a decoder saw, its slow gaps (p99 per step), and the newcomer's TTFT.

The baseline is the same cell before the newcomer came: the same decoders, the same launch, the same batch, from the
first token of the last of them on. A gap belongs to the reading if its middle lies between the newcomer's sending and
its first token; the longest stall is the longest gap of any decoder that overlaps those two instants at all.

All decoders wait for the same engine steps, so that there being several of them is no evidence of how another launch
would differ: intervals are over blocks, and one block has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from specprof.analyse import gates, stats
from specprof.analyse.evidence import Evidence
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import LaunchFindings, caution, each_once, invalid, on_launch
from specprof.analyse.requests import NS
from specprof.analyse.results import NOTHING, Figure, GateFinding, Severity
from specprof.analyse.stats import Array
from specprof.analyse.thresholds import ADMISSION_STEPS
from specprof.columns import REQUEST_SCHEMA
from specprof.records import Cell, Interference, Role, arm_in_words, draft_length

TIMELINES = 16  # decoders whose chunks are kept for the picture
WHOLE, CHUNKED, UNREAD = "whole", "chunked", "not read"


@dataclass(frozen=True, slots=True)
class Timeline:
    """One cell as it happened: when each decoder's chunks arrived, seconds from when the newcomer was sent."""

    block: int
    chunks_s: tuple[tuple[float, ...], ...]  # one row per decoder
    first_token_s: float  # the newcomer's


@dataclass(frozen=True, slots=True)
class InterferenceRatios:
    """This cell's times over another's, block by block; below 1 is less waiting."""

    longest_stall: Figure
    reading_itl_p99: Figure
    ttft: Figure


@dataclass(frozen=True, slots=True)
class InterferenceFigures:
    """One newcomer among so many decoders, on one arm, with one size of a batch, over all blocks. Times in seconds.

    ITL is per step. Means over blocks are geometric, their intervals 95%; None where one block was measured.
    `newcomer_share` is the part of the longest stall that a step would not have taken anyhow. `against_whole` compares
    a prompt read in chunks with the same one read whole, `against_off` an arm with the one without speculation.
    """

    tag: str  # what the decoders write
    arm: str
    method: str
    decoders: int
    output_tokens: int  # of each decoder
    newcomer_id: str
    prompt_tokens: int | None  # the newcomer's; None where it failed
    max_num_batched_tokens: int
    reading: str  # "whole", "chunked" or "not read"
    num_blocks: int
    baseline_itl_p50_s: Figure
    baseline_itl_p99_s: Figure
    reading_itl_p50_s: Figure
    reading_itl_p99_s: Figure
    longest_stall_s: Figure
    newcomer_share: Figure
    steps_while_reading: Figure  # of a decoder until the newcomer's first token: each chunk, and the step under way
    ttft_s: Figure  # the newcomer's
    against_whole: InterferenceRatios | None
    against_off: InterferenceRatios | None
    timeline: Timeline | None  # of the first block that has one
    gates: tuple[GateFinding, ...]

    @property
    def valid(self) -> bool:
        """Whether no gate forbids to rely on it."""
        return not any(gate.severity is Severity.INVALID for gate in self.gates)


@dataclass(frozen=True, slots=True)
class Encounter:
    """One cell: what its decoders saw before the newcomer came and while it was read, seconds; NaN where nothing."""

    baseline: Array  # gaps
    reading: Array
    longest_stall: float
    steps_while_reading: float  # of one decoder, median over all
    ttft: float
    queued: float  # of the newcomer, before the engine began to read it; NaN where the engine does not say
    prompt_tokens: int
    timeline: Timeline
    num_ended_early: int  # decoders that were done before the newcomer's first token


@dataclass(frozen=True, slots=True)
class _Place:
    """What a figure speaks of, whatever the block."""

    tag: str
    newcomer_id: str
    decoders: int
    arm: str
    max_num_batched_tokens: int


_Found = Mapping[int, Encounter]  # by block
_Quantity = Callable[[Encounter], float]

_QUANTITIES: Mapping[str, _Quantity] = {
    "baseline_itl_p50_s": lambda met: _percentile(met.baseline, 0.50),
    "baseline_itl_p99_s": lambda met: _percentile(met.baseline, 0.99),
    "reading_itl_p50_s": lambda met: _percentile(met.reading, 0.50),
    "reading_itl_p99_s": lambda met: _percentile(met.reading, 0.99),
    "longest_stall_s": lambda met: met.longest_stall,
    "ttft_s": lambda met: met.ttft,
}


def interference(
    evidence: Evidence,
    limits: Mapping[int, gates.Limits] | None = None,
    of_launch: LaunchFindings = (),
) -> list[InterferenceFigures]:
    """Every interference cell of a study: arm off first, whole before chunked.

    By launch number, `limits`: of client and machine; `of_launch`: what is true of every cell of a launch, as drift.
    """
    frames: dict[_Place, list[CellFrame]] = defaultdict(list)
    for frame in evidence.frames:
        if frame.cell.role is Role.INTERFERENCE and frame.cell.interference is not None:
            frames[_place(frame.cell, frame.cell.interference)].append(frame)
    found = {place: _encounters(of) for place, of in frames.items()}
    ordered = sorted(frames, key=lambda place: _rank(place, evidence.off_arm))
    told = _Told(found, {place: of[0].cell for place, of in frames.items()}, evidence.off_arm)
    return [told.figures(place, _findings(frames[place], found[place], limits or {}, of_launch)) for place in ordered]


class _Told:
    """The encounters of a study, and which of them stand against which."""

    def __init__(self, found: Mapping[_Place, _Found], cells: Mapping[_Place, Cell], off_arm: str | None) -> None:
        self._found, self._cells, self._off_arm = found, cells, off_arm

    def figures(self, place: _Place, findings: tuple[GateFinding, ...]) -> InterferenceFigures:
        """One place, with what it is compared with."""
        met, cell = self._found[place], self._cells[place]
        any_block = next(iter(met.values()), None)
        step = _mean(_QUANTITIES["baseline_itl_p50_s"](one) / one.longest_stall for one in met.values())
        return InterferenceFigures(
            tag=place.tag,
            arm=place.arm,
            method=arm_in_words(cell.speculative_config),
            decoders=place.decoders,
            output_tokens=cell.max_tokens,
            newcomer_id=place.newcomer_id,
            prompt_tokens=any_block.prompt_tokens if any_block else None,
            max_num_batched_tokens=place.max_num_batched_tokens,
            reading=self._reading(place),
            num_blocks=len(met),
            **{name: _mean(map(quantity, met.values())) for name, quantity in _QUANTITIES.items()},
            newcomer_share=_rest(step),
            steps_while_reading=_mean(one.steps_while_reading for one in met.values()),
            against_whole=self._against_whole(place),
            against_off=self._against_off(place),
            timeline=any_block.timeline if any_block else None,
            gates=findings,
        )

    def _reading(self, place: _Place) -> str:
        """Whole if the prompt fits into a step beside the most tokens that the decoders may need of it."""
        met = next(iter(self._found[place].values()), None)
        if met is None:
            return UNREAD
        of_decoders = place.decoders * (draft_length(self._cells[place].speculative_config) + 1)
        return WHOLE if met.prompt_tokens + of_decoders <= place.max_num_batched_tokens else CHUNKED

    def _against_whole(self, place: _Place) -> InterferenceRatios | None:
        if self._reading(place) != CHUNKED:
            return None
        sizes = {other.max_num_batched_tokens for other in self._found}
        others = [replace(place, max_num_batched_tokens=size) for size in sorted(sizes)]
        whole = [other for other in others if other in self._found and self._reading(other) == WHOLE]
        if not whole:
            return None
        return _ratios(self._found[place], self._found[whole[0]])

    def _against_off(self, place: _Place) -> InterferenceRatios | None:
        if self._off_arm is None or place.arm == self._off_arm:
            return None
        return _ratios(self._found[place], self._found.get(replace(place, arm=self._off_arm), {}))


def _place(cell: Cell, of: Interference) -> _Place:
    return _Place(cell.tag, of.newcomer_id, cell.concurrency - 1, cell.arm, of.max_num_batched_tokens)


def _newcomer_id(cell: Cell) -> str:
    return cell.interference.newcomer_id if cell.interference is not None else ""


def _rank(place: _Place, off_arm: str | None) -> tuple[object, ...]:
    arm = (place.arm != off_arm, place.arm)
    return place.tag, place.newcomer_id, place.decoders, -place.max_num_batched_tokens, arm


# -- one cell ---------------------------------------------------------------------------------------------------------


def _encounters(frames: Sequence[CellFrame]) -> dict[int, Encounter]:
    found = ((frame.cell.block, encounter(frame)) for frame in frames)
    return {block: met for block, met in sorted(found, key=lambda item: item[0]) if met is not None}


def encounter(frame: CellFrame) -> Encounter | None:
    """What happened in one cell; None where the newcomer or every decoder failed."""
    newcomer_id = _newcomer_id(frame.cell)
    requests = frame.requests
    is_newcomer = requests.of_prompts([newcomer_id])
    if not is_newcomer.any() or is_newcomer.all():
        return None
    newcomer = requests.where(is_newcomer)
    sent, first = float(newcomer.sent[0]), float(newcomer.first[0])
    written = [at / NS for at, its_own in zip(frame.lists("chunk_ns"), is_newcomer, strict=True) if not its_own]
    starts, ends = (np.concatenate([at[part] for at in written]) for part in (slice(None, -1), slice(1, None)))
    gaps, middles = ends - starts, (starts + ends) / 2
    everybody_writes = max(float(at[0]) for at in written)
    inside = (sent <= middles) & (middles <= first)
    overlapping = gaps[(starts < first) & (ends > sent)]
    return Encounter(
        baseline=gaps[(starts >= everybody_writes) & (ends <= sent)],
        reading=gaps[inside],
        longest_stall=float(overlapping.max()) if len(overlapping) else float("nan"),
        steps_while_reading=float(np.median([_num_inside(at, sent, first) for at in written])),
        ttft=first - sent,
        queued=float(newcomer.queue_s[0]),
        prompt_tokens=int(newcomer.prompt_tokens[0]),
        timeline=Timeline(
            block=frame.cell.block,
            chunks_s=tuple(tuple(float(s) for s in np.round(at - sent, 5)) for at in written[:TIMELINES]),
            first_token_s=first - sent,
        ),
        num_ended_early=sum(float(at[-1]) < first for at in written),
    )


def _num_inside(at: Array, sent: float, first: float) -> int:
    middles = (at[:-1] + at[1:]) / 2
    return int(((sent <= middles) & (middles <= first)).sum())


def _percentile(gaps: Array, share: float) -> float:
    return float(np.quantile(gaps, share)) if len(gaps) else float("nan")


# -- over blocks ------------------------------------------------------------------------------------------------------


def _mean(values: Iterable[float]) -> Figure:
    """Geometric mean over blocks with its interval; none from one block."""
    known = np.array([value for value in values if np.isfinite(value) and value > 0])
    return stats.log_mean(known) if len(known) else NOTHING


def _rest(part: Figure) -> Figure:
    """1 - a share, which cannot be less than nothing."""
    value, low, high = (None if end is None else max(1 - end, 0.0) for end in (part.value, part.high, part.low))
    return Figure(value, low, high)


def _ratios(mine: _Found, others: _Found) -> InterferenceRatios | None:
    shared = [block for block in mine if block in others]
    if not shared:
        return None

    def ratio(name: str) -> Figure:
        quantity = _QUANTITIES[name]
        return _mean(quantity(mine[block]) / quantity(others[block]) for block in shared)

    return InterferenceRatios(ratio("longest_stall_s"), ratio("reading_itl_p99_s"), ratio("ttft_s"))


# -- gates ------------------------------------------------------------------------------------------------------------


def _findings(
    frames: Sequence[CellFrame],
    found: _Found,
    limits: Mapping[int, gates.Limits],
    of_launch: LaunchFindings,
) -> tuple[GateFinding, ...]:
    """The gates of all blocks, each once."""
    told: list[GateFinding] = []
    for frame in frames:
        launch = frame.data.launch
        told += gates.interference_gates(frame, _only_decoders(frame), limits.get(launch, gates.UNLIMITED))
        told += _of_encounter(frame, found.get(frame.cell.block))
        told += on_launch(launch, of_launch)
    return each_once(told)


def _only_decoders(frame: CellFrame) -> CellFrame:
    """The cell without its newcomer, whose length is another."""
    newcomer_id = _newcomer_id(frame.cell)
    table = frame.data.requests.select(REQUEST_SCHEMA.names)
    return CellFrame(replace(frame.data, requests=table.filter(pc.not_equal(table["prompt_id"], newcomer_id))))


def _of_encounter(frame: CellFrame, met: Encounter | None) -> Iterator[GateFinding]:
    if met is None:
        return
    if met.num_ended_early:
        yield invalid(
            1,
            "decoders ended early",
            f"{met.num_ended_early} of {frame.cell.concurrency - 1} decoders had written everything before the "
            "newcomer's first token: the others waited in a smaller batch",
            "Raise interference.output_tokens, or lower after_tokens.",
        )
    step = _percentile(met.baseline, 0.5)
    if met.queued > ADMISSION_STEPS * step:
        yield caution(
            1,
            "server queue",
            f"the newcomer waited {met.queued * 1e3:.0f} ms ({met.queued / step:.1f} steps) before it was read",
            "Raise max_num_seqs above the number of decoders.",
        )
