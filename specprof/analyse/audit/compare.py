"""Several claims side by side: what their ratio is, and what it is a ratio of.

A ratio of two throughputs belongs to one cause only if one condition differs. Where two differ, a third claim that
shares one condition with each splits the ratio in two cuts (METHOD 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from specprof.analyse.audit.claim import Claim
from specprof.analyse.audit.findings import Audit, Finding, Kind
from specprof.analyse.audit.wording import speed, times

SAME_LENGTH = 0.10  # prompt lengths within this share count as one condition
FLAT = 0.05  # throughput that grows less than this between two N has met a limit
MAX_CLAIMS = 8  # pairs grow with the square: of a longer list only flat curves are told


def compare(audits: Sequence[Audit]) -> tuple[Finding, ...]:
    """Findings on every pair of claims that both have a throughput, larger over smaller."""
    known = [audit for audit in audits if audit.rebuilt.throughput_tok_s]
    found = (finding for pair in _pairs(known) for finding in _pair(*pair, known))
    return tuple(finding for finding in found if len(known) <= MAX_CLAIMS or finding.kind is Kind.CAUTION)


def differences(one: Claim, other: Claim) -> tuple[str, ...]:
    """Stated conditions in which two claims differ; a condition only one of them states counts as different."""
    conditions = {
        "N": one.concurrency == other.concurrency,
        "stop rule": one.stop == other.stop,
        "content": one.content == other.content,
        "speculation": _arm(one) == _arm(other),
        "prompt length": _same_length(one.prompt_tokens, other.prompt_tokens),
        "temperature": one.temperature == other.temperature,
        "prefix cache": one.prefix_cache == other.prefix_cache,
        "model": one.model == other.model,
        "engine": one.engine == other.engine,
        "hardware": one.hardware == other.hardware,
        "aggregation": one.aggregation == other.aggregation,
    }
    return tuple(name for name, same in conditions.items() if not same)


def _pairs(audits: Sequence[Audit]) -> Iterator[tuple[Audit, Audit]]:
    """Every two claims, the faster one first."""
    return combinations(sorted(audits, key=_throughput, reverse=True), 2)


def _pair(high: Audit, low: Audit, all_known: Sequence[Audit]) -> Iterator[Finding]:
    ratio = _throughput(high) / _throughput(low)
    names = f"{_name(high)} {speed(_throughput(high))} / {_name(low)} {speed(_throughput(low))} = {times(ratio)}"
    changed = differences(high.claim, low.claim)
    if not changed:
        yield Finding(
            Kind.COMPARISON,
            "same conditions",
            f"{names}, and no stated condition differs",
            "That is noise, or unstated.",
        )
    elif len(changed) == 1:
        yield Finding(Kind.COMPARISON, _what(changed[0]), f"{names}: only {changed[0]} differs")
        yield from _flat(high, low, ratio, changed[0])
    else:
        cuts = _two_cuts(high, low, changed, all_known)
        instead = cuts or f"Change one at a time: {', '.join(changed)}, on the same prompts."
        yield Finding(Kind.COMPARISON, "mixed causes", f"{names}, but {', '.join(changed)} differ at once", instead)


def _two_cuts(high: Audit, low: Audit, changed: tuple[str, ...], all_known: Sequence[Audit]) -> str:
    """`2.10 × 1.69`: through a claim that differs from each end in one condition only."""
    if len(changed) != 2:
        return ""
    for middle in all_known:
        first, second = differences(middle.claim, low.claim), differences(high.claim, middle.claim)
        if middle is not high and middle is not low and len(first) == len(second) == 1 and first != second:
            a, b = _throughput(middle) / _throughput(low), _throughput(high) / _throughput(middle)
            return f"Two cuts through {_name(middle)}: {first[0]} {times(a)}, then {second[0]} {times(b)}."
    return ""


def _flat(high: Audit, low: Audit, ratio: float, changed: str) -> Iterator[Finding]:
    """More streams and no more throughput: a cap, or a full machine."""
    ours, theirs = high.claim.concurrency, low.claim.concurrency
    if (
        changed != "N"
        or ours is None
        or theirs is None
        or ratio > 1 + FLAT
        or max(ours, theirs) < 1.5 * min(ours, theirs)
    ):
        return
    yield Finding(
        Kind.CAUTION,
        "flat in N",
        f"{speed(_throughput(low))} at N = {theirs}, {speed(_throughput(high))} at N = {ours}: probably a cap",
        f"State max_num_seqs, and read the larger run as N ≤ {min(ours, theirs)} until it is known.",
        gate=1,
    )


def _what(changed: str) -> str:
    return {
        "N": "batching gain",
        "speculation": "speculation gain",
        "stop rule": "stop-rule cut",
        "content": "content cut",
    }.get(changed, f"{changed} alone")


def _arm(claim: Claim) -> tuple[str | None, int | None] | None:
    said = claim.speculation
    if said is None:
        return None
    return (said.method, said.draft_tokens) if said.on else ("off", None)


def _same_length(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_LENGTH * max(one, other)


def _throughput(audit: Audit) -> float:
    return audit.rebuilt.throughput_tok_s or 0.0


def _name(audit: Audit) -> str:
    return audit.claim.name or audit.claim.source or "unnamed"
