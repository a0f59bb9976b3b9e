"""Published tables over draft lengths K: which K is best by TPOT, and whether the printed speed-ups are its ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprof.analyse.audit.claim import Claim, DraftLengths
from specprof.analyse.audit.findings import Finding, Kind
from specprof.analyse.audit.speculation import SPEEDUP_MARGIN
from specprof.analyse.audit.wording import figure, seconds, times
from specprof.analyse.gains import step_time_ratio

PRINTING = 0.003  # TPOTs of three digits divided: a printed speed-up may be off by this share


def table_findings(claim: Claim) -> Iterator[Finding]:
    """Every draft-length table of the claim."""
    for table in claim.draft_lengths:
        yield from _best(table)
        yield from _printed(table)
        yield from _possible(table)


def speedups(table: DraftLengths) -> tuple[float, ...]:
    """TPOT without speculation / TPOT, for each K."""
    return tuple(table.tpot_off_s / tpot for tpot in table.tpot_s)


def best_draft_length(table: DraftLengths) -> int:
    """K*: the draft length with the least TPOT, the shorter one of equals. 0 (off) where no draft pays."""
    gain, shortest = max(zip(speedups(table), (-k for k in table.draft_tokens), strict=True))
    return -shortest if gain > 1 else 0


def wrong_speedups(table: DraftLengths) -> tuple[int, ...]:
    """Draft lengths whose printed speed-up is not TPOT off / TPOT."""
    rows = zip(table.draft_tokens, table.printed_speedups, speedups(table), strict=False)
    return tuple(k for k, printed, true in rows if abs(printed / true - 1) > PRINTING)


def _best(table: DraftLengths) -> Iterator[Finding]:
    best, true = best_draft_length(table), speedups(table)
    gain = max(true)
    told = f"{table.name}: best K by TPOT is {best}" + (f", {times(gain)}" if best else ": no draft length pays")
    lengths = table.acceptance_lengths
    if lengths and max(lengths) != lengths[true.index(gain)]:
        longest = table.draft_tokens[lengths.index(max(lengths))]
        told += f"; acceptance length keeps growing up to K = {longest}, speed does not"
    yield Finding(Kind.REBUILT, "draft length", told)


def _printed(table: DraftLengths) -> Iterator[Finding]:
    for k in wrong_speedups(table):
        row = table.draft_tokens.index(k)
        printed, true = table.printed_speedups[row], speedups(table)[row]
        ratio = f"{seconds(table.tpot_off_s)} / {seconds(table.tpot_s[row])} = {true:.4f}"
        yield Finding(
            Kind.IMPOSSIBLE,
            "printed speed-up",
            f"{table.name}, K = {k}: {printed:.4f} is printed, but TPOT off / TPOT is {ratio}",
            f"Write {true:.2f}, or say which other runs the printed number compares.",
            gate=12,
        )


def _possible(table: DraftLengths) -> Iterator[Finding]:
    for k, length, gain in zip(table.draft_tokens, table.acceptance_lengths, speedups(table), strict=False):
        if length > k + 1:
            evidence = f"{table.name}, K = {k}: {figure(length)} tokens per step are more than K + 1"
            yield Finding(Kind.IMPOSSIBLE, "acceptance length", evidence, "Check K and the counters.", gate=9)
        if gain > length * (1 + SPEEDUP_MARGIN):
            evidence = f"{table.name}, K = {k}: {times(gain)} is more than the {figure(length)} tokens a step delivers"
            yield Finding(Kind.IMPOSSIBLE, "speed-up", evidence, "Measure both arms on the same prompts.", gate=12)
    costs = step_costs(table)
    if costs:
        told = ", ".join(f"K = {k} {times(cost)}" for k, cost in zip(table.draft_tokens, costs, strict=True))
        yield Finding(
            Kind.REBUILT, "step time", f"{table.name}: a step with a draft takes, against one without: {told}"
        )


def step_costs(table: DraftLengths) -> Sequence[float]:
    """Step time on / off = AL / speed-up for each K: what carrying a draft costs."""
    pairs = zip(table.acceptance_lengths, speedups(table), strict=False)
    return [step_time_ratio(length, 1.0, gain) for length, gain in pairs]
