"""Claims with four corners: speculation off and on, one stream and N, per content (METHOD 4 and 10).

The gains come out of the numbers; so does whether the sentences around them hold. Where the claim states its noise an
interval decides, otherwise the point estimates are held against the same ±5%.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from math import exp, inf, log, sqrt

from specprof.analyse import gains
from specprof.analyse.audit.claim import Claim, Factorial, Says
from specprof.analyse.audit.findings import Finding, Kind
from specprof.analyse.audit.speculation import rate_findings, shortest_draft
from specprof.analyse.audit.wording import figure, seconds, speed, times
from specprof.analyse.stats import equivalent

Corner = Callable[[Factorial], float | None]


def factorial_findings(claim: Claim) -> Iterator[Finding]:
    """What each factorial says, and what several contents say together."""
    for table in claim.factorials:
        yield from _gains(table)
        yield from _independence(claim, table)
        yield from _acceptance(claim, table)
    for code, prose in combinations(claim.factorials, 2):
        yield from _content_when_off(claim, code, prose)
        yield from _step_times(code, prose)


def batching_off(table: Factorial) -> float | None:
    """B(off) = off_n / off_1."""
    return gains.batching_gain(table.off_n, table.off_1) if table.off_n and table.off_1 else None


def batching_on(table: Factorial) -> float | None:
    """B(on) = on_n / on_1."""
    return gains.batching_gain(table.on_n, table.on_1) if table.on_n and table.on_1 else None


def speculation_at_one(table: Factorial) -> float | None:
    """S(1) = on_1 / off_1."""
    return gains.speculation_gain(table.on_1, table.off_1) if table.on_1 and table.off_1 else None


def speculation_at_n(table: Factorial) -> float | None:
    """S(N) = on_n / off_n."""
    return gains.speculation_gain(table.on_n, table.off_n) if table.on_n and table.off_n else None


def interaction(table: Factorial) -> float | None:
    """I = B(on) / B(off)."""
    on, off = batching_on(table), batching_off(table)
    return gains.interaction(on, off) if on and off else None


def independent_prediction(table: Factorial) -> float | None:
    """What on_n would be if the two gains multiplied: off_1 · B(off) · S(1), tok/s."""
    batching, speculation = batching_off(table), speculation_at_one(table)
    return table.off_1 * batching * speculation if table.off_1 and batching and speculation else None


def step_time(table: Factorial, throughput: float, num_streams: int, draft_tokens: int) -> float | None:
    """Seconds of an engine step: N · (1 + K · AR) / X."""
    if table.acceptance_rate is None:
        return None
    return num_streams * (1 + draft_tokens * table.acceptance_rate) / throughput


def _gains(table: Factorial) -> Iterator[Finding]:
    named: list[tuple[str, float | None]] = [
        ("batching, off", batching_off(table)),
        ("batching, on", batching_on(table)),
        ("speculation at N = 1", speculation_at_one(table)),
        (f"speculation at N = {table.concurrency or 'N'}", speculation_at_n(table)),
    ]
    told = [f"{name} {times(value)}" for name, value in named if value is not None]
    between = interaction(table)
    if between is not None:
        told.append(f"interaction {between:.3f}")
    if told:
        yield Finding(Kind.REBUILT, f"gains, {table.content}", "; ".join(told))


def _independence(claim: Claim, table: Factorial) -> Iterator[Finding]:
    """The two gains may be multiplied only if the interaction is within ±5% of 1: where noise is stated, all of its
    interval.
    """
    between, product = interaction(table), independent_prediction(table)
    if between is None or product is None or table.on_n is None:
        return
    outcome, interval = _within(log(between), None if claim.noise is None else 2 * claim.noise)
    if not interval:
        outcome = "pass" if abs(between - 1) <= gains.INTERACTION_MARGIN else "fail"
    bounds = f" [{times(exp(interval[0]))}, {times(exp(interval[1]))}]" if interval else ""
    evidence = (
        f"{table.content}: the gains multiplied give {speed(product)}, measured is {speed(table.on_n)}: "
        f"interaction {times(between)}{bounds}"
    )
    if outcome == "pass":
        yield Finding(Kind.REBUILT, "interaction", f"{evidence}, within ±{gains.INTERACTION_MARGIN:.0%}")
        return
    asserted = Says.GAINS_ARE_INDEPENDENT in claim.says
    open_still = ": with the stated noise it is undecided whether that is within ±5%" if outcome == "undecided" else ""
    yield Finding(
        Kind.IMPOSSIBLE if asserted and outcome == "fail" else Kind.CAUTION,
        "independent gains",
        f"{evidence}{open_still}" + ("; batching and speculation are said to be independent" if asserted else ""),
        "Never multiply the two gains here: print the speculation gain at each N.",
    )


def _acceptance(claim: Claim, table: Factorial) -> Iterator[Finding]:
    rate = table.acceptance_rate
    if rate is None:
        return
    per_position = Says.ACCEPTANCE_IS_PER_POSITION in claim.says
    for where, gain in (
        (f"{table.content}, N = 1", speculation_at_one(table)),
        (_at_n(table), speculation_at_n(table)),
    ):
        if gain is not None:
            yield from rate_findings(rate, gain, where, draft_tokens=table.draft_tokens, per_position=per_position)


def _content_when_off(claim: Claim, one: Factorial, other: Factorial) -> Iterator[Finding]:
    """Without speculation, contents must run equally fast if content acts only through speculation."""
    asserted = Says.CONTENT_NEEDS_SPECULATION in claim.says
    corners: tuple[tuple[str, Corner], ...] = (("N = 1", lambda t: t.off_1), (_n(one), lambda t: t.off_n))
    for where, corner in corners:
        ours, theirs = corner(one), corner(other)
        if ours is None or theirs is None or (where != "N = 1" and one.concurrency != other.concurrency):
            continue
        gap = log(ours / theirs)
        outcome, interval = _within(gap, None if claim.noise is None else sqrt(2) * claim.noise)
        bounds = f" [{figure(interval[0])}, {figure(interval[1])}]" if interval else ""
        told = f"{one.content} {speed(ours)}, {other.content} {speed(theirs)}"
        evidence = f"speculation off, {where}: {told}, ln ratio {gap:+.3f}{bounds}"
        if outcome == "pass":
            yield Finding(Kind.REBUILT, "content without speculation", f"{evidence}, within ±5%")
        elif outcome == "undecided":
            instead = "Repeat it: equal speed is a finding (90% interval inside ±5%), not an assumption."
            yield Finding(Kind.CAUTION, "content without speculation", f"{evidence}: undecided", instead)
        else:
            yield Finding(
                Kind.IMPOSSIBLE if asserted else Kind.CAUTION,
                "content without speculation",
                f"{evidence}: content matters although nothing is speculated",
                "Do not say that content acts only through acceptance; decompose the ratio into acceptance, steps/s "
                "and decode share on the same prompts.",
            )


def _step_times(one: Factorial, other: Factorial) -> Iterator[Finding]:
    """The same K costs the same step whatever the content; where it does not, acceptance is of other prompts."""
    k = one.draft_tokens or other.draft_tokens or max(_least_draft(one), _least_draft(other))
    if k == 0 or not one.concurrency or one.concurrency != other.concurrency:
        return
    gaps = []
    corners: tuple[tuple[int, Corner], ...] = ((1, lambda t: t.on_1), (one.concurrency, lambda t: t.on_n))
    for n, corner in corners:
        ours, theirs = corner(one), corner(other)
        mine = step_time(one, ours, n, k) if ours else None
        yours = step_time(other, theirs, n, k) if theirs else None
        if mine is None or yours is None:
            return
        gaps.append((n, mine, yours, abs(log(mine / yours))))
    (_, *_, near), (_, *_, far) = sorted(gaps, key=lambda gap: gap[3])
    if near <= log(1 + gains.INTERACTION_MARGIN) < far:
        told = "; ".join(f"N = {n}: {seconds(mine)} and {seconds(yours)}" for n, mine, yours, _ in gaps)
        yield Finding(
            Kind.CAUTION,
            "step time",
            f"at K = {k} a step takes, {one.content} and {other.content}: {told}. Equal at one N and not at the other",
            "The acceptance rates, or the runs at different N, are of different prompts: measure all on the same.",
        )


def _least_draft(table: Factorial) -> int:
    """The shortest draft both of a content's speed-ups allow; 0 where it cannot be told."""
    rate = table.acceptance_rate
    told = [gain for gain in (speculation_at_one(table), speculation_at_n(table)) if gain is not None and gain > 1]
    return 0 if rate is None else max((shortest_draft(gain, rate) or 0 for gain in told), default=0)


def _within(log_ratio: float, standard_error: float | None) -> tuple[str, tuple[float, float] | None]:
    """Is a log ratio inside ±ln 1.05: the outcome, and the 90% interval of the log ratio where the noise is known."""
    if not standard_error:
        return ("pass" if abs(log_ratio) <= log(1 + gains.INTERACTION_MARGIN) else "fail"), None
    outcome, interval = equivalent(log_ratio, standard_error, inf, margin=gains.INTERACTION_MARGIN)
    return outcome, (interval.low or 0.0, interval.high or 0.0)


def _n(table: Factorial) -> str:
    return f"N = {table.concurrency or 'N'}"


def _at_n(table: Factorial) -> str:
    return f"{table.content}, {_n(table)}"
