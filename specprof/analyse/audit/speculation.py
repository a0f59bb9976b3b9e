"""Checks on what a claim says about speculation: its definitions against each other and the speed (METHOD 1, 7.12)."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from specprof.analyse.audit.claim import Claim, Says, SpeculationClaim
from specprof.analyse.audit.findings import Finding, Kind
from specprof.analyse.audit.rebuild import told_acceptance_length, told_acceptance_rate
from specprof.analyse.audit.wording import figure, seconds, share, times
from specprof.analyse.thresholds import MAX_AL_GAP, MAX_TPOT_GAP, SUSPICIOUS_SURVIVAL, TOO_GOOD

ROUNDING = 0.005  # a survival printed with two decimals may be off by this much
SPEEDUP_MARGIN = 0.02
LONGEST_DRAFT = 10_000
STEP_MARGIN = (1 + MAX_TPOT_GAP) * (1 + MAX_AL_GAP)  # both sides of ITL / TPOT = AL have their own allowance
DRAFTS_FROM_TEXT = ("ngram", "suffix")  # methods whose steps may carry no draft at all


def speculation_findings(claim: Claim) -> Iterator[Finding]:
    """Everything acceptance figures can contradict."""
    said = claim.speculation
    if said is None or not said.on:
        return
    yield from _rebuilt(said)
    yield from _counts(said)
    yield from _bounds(said)
    yield from _survival(said)
    yield from _definitions(said)
    yield from _speedup(claim, said)
    yield from _step_interval(claim, said)


def per_position_cap(acceptance: float) -> float:
    """Tokens per step if every position were accepted with this probability, however long the draft: 1 / (1 - a)."""
    return 1 / (1 - acceptance) if acceptance < 1 else float("inf")


def shortest_draft(speedup: float, acceptance: float) -> int | None:
    """Least K for which 1 + K · AR tokens per step can give this speed-up, steps being no cheaper with a draft.

    None where no draft of a thinkable length can.
    """
    if (speedup - 1) > acceptance * LONGEST_DRAFT:
        return None
    return max(1, ceil((speedup - 1) / acceptance - 1e-9)) if acceptance else 1


def rate_findings(
    acceptance: float, speedup: float, where: str, *, draft_tokens: int | None = None, per_position: bool = False
) -> Iterator[Finding]:
    """An acceptance rate beside the speed-up it is said to explain; no speed-up exceeds the tokens a step delivers.

    Read as a per-position probability the rate caps those at 1 / (1 - a); a speed-up above that cap shows that the rate
    is per drafted token, and how long the drafts must have been. With K stated it is per drafted token: 1 + K · a.
    """
    if draft_tokens is not None and not per_position:
        yield from _rate_at_k(acceptance, speedup, where, draft_tokens)
        return
    cap = per_position_cap(acceptance)
    if cap * (1 + SPEEDUP_MARGIN) >= speedup:
        return
    reading = "Called one, it" if per_position else "Read as one, it"
    bound = f"{reading} allows at most 1 / (1 - {figure(acceptance)}) = {figure(cap)} tokens per step"
    k = shortest_draft(speedup, acceptance)
    least = "no draft length gives that" if k is None else f"as accepted / drafted it needs K ≥ {k}"
    yield Finding(
        Kind.IMPOSSIBLE if per_position else Kind.CAUTION,
        "acceptance rate",
        f"{where}: {figure(acceptance * 100)}% cannot be a per-position probability. {bound}, too few for "
        f"{times(speedup)}; {least}",
        "Say 'accepted / drafted at K = …', and print the acceptance length and the survival of each position.",
        gate=12,
    )


def _rate_at_k(acceptance: float, speedup: float, where: str, draft_tokens: int) -> Iterator[Finding]:
    most = 1 + draft_tokens * acceptance
    if acceptance <= 1 and speedup > most * (1 + SPEEDUP_MARGIN):
        yield Finding(
            Kind.IMPOSSIBLE,
            "acceptance rate",
            f"{where}: {figure(acceptance * 100)}% of K = {draft_tokens} drafted is at most {figure(most)} tokens "
            f"per step, too few for {times(speedup)}",
            "Take acceptance and speed from the same prompts.",
            gate=12,
        )


def _rebuilt(said: SpeculationClaim) -> Iterator[Finding]:
    if said.num_steps and said.num_accepted is not None:
        length = told_acceptance_length(said) or 0.0
        counts = f"1 + {figure(said.num_accepted)} / {figure(said.num_steps)} steps = {length:.3f} tokens per step"
        yield Finding(Kind.REBUILT, "acceptance length", counts)
        printed = said.acceptance_length
        if printed is not None and abs(printed / length - 1) > MAX_AL_GAP:
            evidence = f"{figure(printed)} is printed, the counts give {length:.3f}"
            yield Finding(Kind.IMPOSSIBLE, "acceptance length", evidence, "Print what the counters give.", gate=12)
    if said.num_drafted and said.num_accepted is not None:
        rate = told_acceptance_rate(said) or 0.0
        counts = f"{figure(said.num_accepted)} / {figure(said.num_drafted)} drafted = {rate:.4f}"
        yield Finding(Kind.REBUILT, "acceptance rate", counts)


def _counts(said: SpeculationClaim) -> Iterator[Finding]:
    if said.num_steps == 0 or said.num_drafted == 0:
        yield Finding(
            Kind.IMPOSSIBLE,
            "speculation inactive",
            "speculation is said to be on, but not one step carried a draft",
            "Check the speculative config and the engine's log; this is a figure with speculation off.",
            gate=13,
        )
    if said.num_accepted is not None and said.num_drafted is not None and said.num_accepted > said.num_drafted:
        evidence = f"{figure(said.num_accepted)} tokens accepted of {figure(said.num_drafted)} drafted"
        yield Finding(Kind.IMPOSSIBLE, "acceptance counts", evidence, "Look for foreign traffic on the server.", gate=9)
    if said.num_steps and said.num_drafted and said.draft_tokens:
        most = said.num_steps * said.draft_tokens
        if said.num_drafted > most:
            evidence = f"{figure(said.num_drafted)} drafted tokens are more than {figure(said.num_steps)} steps × K"
            yield Finding(Kind.IMPOSSIBLE, "acceptance counts", evidence, "Take all counts over the same run.", gate=9)


def _bounds(said: SpeculationClaim) -> Iterator[Finding]:
    rate, length, k = told_acceptance_rate(said), told_acceptance_length(said), said.draft_tokens
    if rate is not None and rate > 1 and said.num_drafted is None:
        yield Finding(
            Kind.IMPOSSIBLE,
            "acceptance rate",
            f"{figure(rate)} is no share: accepted / drafted lies between 0 and 1",
            f"Write {figure(rate / 100)} if it was meant in per cent.",
            gate=12,
        )
    if length is not None and length < 1:
        evidence = f"{figure(length)} tokens per step are fewer than a step without a draft delivers"
        yield Finding(
            Kind.IMPOSSIBLE, "acceptance length", evidence, "Count the bonus token: AL = 1 + accepted / steps.", gate=12
        )
    if length is not None and k is not None and length > (k + 1) * (1 + 1e-9):
        evidence = f"{figure(length)} tokens per step are more than K + 1 = {k + 1}"
        yield Finding(Kind.IMPOSSIBLE, "acceptance length", evidence, "Check K and the counters.", gate=9)


def _survival(said: SpeculationClaim) -> Iterator[Finding]:
    curve = said.survival
    if not curve:
        return
    if max(curve) > 1:
        evidence = f"a position is accepted in {figure(max(curve))} of the steps"
        yield Finding(Kind.IMPOSSIBLE, "survival", evidence, "Divide by the steps that carried a draft.", gate=12)
        return
    rises = [j + 1 for j in range(1, len(curve)) if curve[j] > curve[j - 1] + 2 * ROUNDING]
    if rises:
        evidence = f"position {rises[0]} is accepted more often than the one before it, without which it cannot be"
        instead = "These may be conditional rates (S_j / S_j-1): say so. Survival never rises."
        yield Finding(Kind.IMPOSSIBLE, "survival", evidence, instead, gate=12)
    if max(curve) >= SUSPICIOUS_SURVIVAL:
        yield Finding(
            Kind.CAUTION,
            TOO_GOOD,
            f"a draft position is accepted in {share(max(curve))} of the steps",
            "Explain it before publishing: filler prompts, loops, or a draft that is the target itself.",
            gate=12,
        )


def _definitions(said: SpeculationClaim) -> Iterator[Finding]:
    length, rate, k = told_acceptance_length(said), told_acceptance_rate(said), said.draft_tokens
    if length is not None and said.survival and max(said.survival) <= 1:
        total = 1 + sum(said.survival)
        allowed = len(said.survival) * ROUNDING + ROUNDING
        consistent = abs(total - length) <= allowed
        complete = k is None or len(said.survival) >= k
        evidence = f"1 + the sum of {len(said.survival)} survival rates = {figure(total)}, AL = {figure(length)}"
        if consistent:
            yield Finding(Kind.REBUILT, "survival", f"{evidence}: consistent")
        elif complete or total > length:
            instead = "AL = 1 + Σ S_j always: say which counts each is made of."
            yield Finding(Kind.IMPOSSIBLE, "survival", evidence, instead, gate=12)
    if length is not None and rate is not None and k is not None and rate <= 1:
        most = 1 + k * rate
        if length > most * (1 + MAX_AL_GAP):
            yield Finding(
                Kind.IMPOSSIBLE,
                "acceptance length",
                f"{figure(length)} tokens per step exceed 1 + K · AR = 1 + {k} × {figure(rate)} = {figure(most)}",
                "Take both from the same counters.",
                gate=12,
            )
        elif length < most / (1 + MAX_AL_GAP):
            yield Finding(
                Kind.CAUTION,
                "draft length",
                f"AL {figure(length)} is below 1 + K · AR = {figure(most)}: many drafts were shorter than K = {k}, or "
                "these are means of different things",
                "Print the raw counts: steps, drafted, accepted.",
            )


def _speedup(claim: Claim, said: SpeculationClaim) -> Iterator[Finding]:
    speedup, length = said.speedup, told_acceptance_length(said)
    if speedup is None:
        return
    if length is not None and speedup > length * (1 + SPEEDUP_MARGIN):
        yield Finding(
            Kind.IMPOSSIBLE,
            "speed-up",
            f"{times(speedup)} is more than the {figure(length)} tokens a step delivers: a step with a draft "
            "would have to be cheaper than one without",
            "Measure both arms on the same prompts, lengths and load.",
            gate=12,
        )
    rate = told_acceptance_rate(said)
    if rate is not None and rate < 1:
        called = Says.ACCEPTANCE_IS_PER_POSITION in claim.says
        yield from rate_findings(rate, speedup, "speculation", draft_tokens=said.draft_tokens, per_position=called)


def _step_interval(claim: Claim, said: SpeculationClaim) -> Iterator[Finding]:
    """ITL (per chunk) / TPOT (per token) is the number of tokens a chunk holds: 1 at least, AL at most."""
    if claim.itl_s is None or claim.tpot_s is None:
        return
    held = claim.itl_s / claim.tpot_s
    evidence = f"ITL {seconds(claim.itl_s)} / TPOT {seconds(claim.tpot_s)} = {figure(held)} tokens per chunk"
    length = told_acceptance_length(said)
    if held < 1 / (1 + MAX_TPOT_GAP):
        instead = "A chunk holds a token at least. Give the mean of both, of one run; medians do not divide."
        kind = Kind.IMPOSSIBLE if claim.latency_statistic == "mean" else Kind.CAUTION
        yield Finding(kind, "step interval", evidence, instead, gate=12)
    elif length is not None and held > length * STEP_MARGIN:
        instead = "Chunks were merged, or ITL and TPOT are not means of the same run; do not read ITL as a step's time."
        yield Finding(Kind.CAUTION, "step interval", f"{evidence}, AL is {figure(length)}", instead, gate=12)
    elif length is not None and held * STEP_MARGIN < length and said.method not in DRAFTS_FROM_TEXT:
        instead = "TPOT must be ITL / tokens per step: say how each was averaged, and whether every step had a draft."
        yield Finding(Kind.CAUTION, "step interval", f"{evidence}, AL is {figure(length)}", instead, gate=12)
    elif length is not None:
        yield Finding(Kind.REBUILT, "step interval", f"{evidence}, AL is {figure(length)}")
