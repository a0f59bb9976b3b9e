"""Gates that need more than one cell: drift (6), changed output (8), a speed-up above its cause (12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from specprof.analyse.frames import CellFrame
from specprof.analyse.results import GateFinding, Severity
from specprof.records import Role

MAX_DRIFT = 0.02
SPEEDUP_TOLERANCE = 1.05  # a gain may exceed its tokens per step by what measuring noise can do, and no more

Texts = Mapping[str, Sequence[int]]  # prompt id → token ids


@dataclass(frozen=True, slots=True)
class Divergence:
    """How many of the same prompts' greedy texts differ between two cells, and where the first difference is."""

    num_differ: int
    num_compared: int
    first_prompt: str = ""
    first_position: int = -1


def divergence(mine: Texts, theirs: Texts) -> Divergence:
    """Compare token ids over the length both texts have."""
    differ: list[tuple[str, int]] = []
    shared = [name for name in mine if name in theirs]
    for name in shared:
        position = first_difference(mine[name], theirs[name])
        if position is not None:
            differ.append((name, position))
    first = min(differ, key=lambda item: item[1], default=("", -1))
    return Divergence(len(differ), len(shared), *first)


def first_difference(mine: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, None if one text is the beginning of the other."""
    length = min(len(mine), len(theirs))
    unequal = np.flatnonzero(np.asarray(mine[:length]) != np.asarray(theirs[:length]))
    return int(unequal[0]) if len(unequal) else None


def texts(frame: CellFrame) -> Texts:
    """Token ids by prompt."""
    return dict(zip(frame.requests["prompt_id"], frame.lists("token_ids"), strict=True))


def changed_output(frame: CellFrame, off: Sequence[CellFrame]) -> Iterator[GateFinding]:
    """Gate 8, greedy: does speculation change the text more than another batch size does without it?

    `off`: the cells of the same content and protocol with speculation off, at every N and in every block. The one at
    the same N (in the same block if there is one) is what speculation is compared with; the control compares it with
    the others: another batch size, or another launch.
    """
    cell = frame.cell
    if not cell.speculative_config or cell.sampling.temperature > 0:
        return
    same_block_first = sorted(off, key=lambda other: other.cell.block != cell.block)
    twin = next((other for other in same_block_first if other.cell.concurrency == cell.concurrency), None)
    if twin is None:
        return
    changed = divergence(texts(frame), texts(twin))
    if changed.num_differ == 0:
        return
    controls = [divergence(texts(twin), texts(other)) for other in off if other is not twin]
    control = max(controls, key=lambda d: d.num_differ / max(d.num_compared, 1), default=Divergence(0, 0))
    where = f"first at token {changed.first_position + 1} of {changed.first_prompt}"
    evidence = f"{changed.num_differ} of {changed.num_compared} greedy texts differ from the off arm's, {where}"
    if not control.num_compared:
        remedy = "Measure the off arm at a second N or in a second block, so that rounding can be told from a fault."
        yield GateFinding(8, "output changed", Severity.CAUTION, evidence + "; no off/off control", remedy)
    elif _more(changed, control):
        evidence += f"; off/off control {control.num_differ} of {control.num_compared}"
        remedy = "A fault, not a speed-up: try dtype float32 and another engine version, and report it."
        yield GateFinding(8, "output changed", Severity.INVALID, evidence, remedy)
    else:
        evidence += f"; off/off control {control.num_differ} of {control.num_compared}"
        remedy = "Not told apart from what batch size and launch do without it. dtype float32 gives exact texts."
        yield GateFinding(8, "output differs", Severity.CAUTION, evidence, remedy)


def _more(changed: Divergence, control: Divergence) -> bool:
    """One-sided Fisher test at 5%: more texts changed than the control explains."""
    table = np.array(
        [
            [changed.num_differ, changed.num_compared - changed.num_differ],
            [control.num_differ, control.num_compared - control.num_differ],
        ]
    )
    return bool(distributions.fisher_exact(table, alternative="greater").pvalue < 0.05)


def drift(frames: Sequence[CellFrame]) -> dict[int, GateFinding]:
    """Gate 6: the sentinel cell before and after a launch, by launch number; only those that disagree."""
    sentinels: dict[int, list[CellFrame]] = defaultdict(list)
    for frame in frames:
        if frame.cell.role is Role.SENTINEL and not frame.requests.empty:
            sentinels[frame.data.launch].append(frame)
    found = {}
    for launch, pair in sentinels.items():
        if len(pair) < 2:
            continue
        before, after = sorted(pair, key=lambda frame: frame.data.started_at)[:: len(pair) - 1]
        change = after.throughput / before.throughput - 1
        if abs(change) > MAX_DRIFT:
            found[launch] = GateFinding(
                6,
                "drift",
                Severity.CAUTION,
                f"the same small cell ran {change:+.1%} after launch {launch} than before it",
                "Keep the machine quiet and let it settle; more blocks average drift out.",
            )
    return found


def above_cause(gain: float, tokens_per_step: float, off_tokens_per_step: float = 1.0) -> GateFinding | None:
    """Gate 12: speculation cannot speed anything up by more than the tokens a step delivers."""
    cause = tokens_per_step / off_tokens_per_step
    if gain <= cause * SPEEDUP_TOLERANCE:
        return None
    return GateFinding(
        12,
        "above its cause",
        Severity.INVALID,
        f"{gain:.2f}× the throughput from {cause:.2f}× the tokens per step",
        "Something else changed between the arms: texts, batch, clock or machine. Measure both again.",
    )
