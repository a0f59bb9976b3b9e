"""Thresholds somebody held a ratio against: three outcomes, and which of them the stated noise supports (METHOD 5)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log, sqrt

from specprof.analyse.audit.claim import Claim, Line
from specprof.analyse.audit.findings import Finding, Kind
from specprof.analyse.audit.wording import change, times
from specprof.analyse.results import Figure, Outcome
from specprof.analyse.stats import around_log


def line_findings(claim: Claim) -> Iterator[Finding]:
    """Every threshold of the claim."""
    for line in claim.lines:
        yield from _line(claim, line)


def line_ratio(line: Line, noise: float | None = None) -> Figure:
    """numerator / denominator with the 95% interval of the stated noise (taken as known); none where none is stated."""
    ratio = line.numerator / line.denominator
    over = line.numerator_noise if line.numerator_noise is not None else noise
    under = line.denominator_noise if line.denominator_noise is not None else noise
    if over is None or under is None:
        return Figure(ratio)
    return around_log(log(ratio), sqrt(over**2 + under**2), inf)


def _line(claim: Claim, line: Line) -> Iterator[Finding]:
    ratio = line_ratio(line, claim.noise)
    outcome = Outcome.of(ratio, line.at_least)
    value = ratio.value or 0.0
    beside = f"{times(value)} against {times(line.at_least)} ({change(value / line.at_least - 1)})"
    if ratio.low is None or ratio.high is None:
        evidence = f"{line.name}: {beside}, with no noise stated"
        instead = "State the run-to-run noise of both figures, or repeat them; one run each decides nothing."
    else:
        evidence = f"{line.name}: {beside}, 95% interval [{ratio.low:.2f}, {ratio.high:.2f}]"
        instead = "Repeat both figures until the interval leaves the threshold."
    if outcome is not Outcome.UNDECIDED and line.says in (None, outcome.value):
        yield Finding(Kind.REBUILT, "verdict", f"{evidence}: {outcome.value}")
    elif outcome is Outcome.UNDECIDED:
        claimed = f", not '{line.says}'" if line.says in ("pass", "fail") else ""
        yield Finding(Kind.CAUTION, "verdict", f"{evidence}: undecided{claimed}", instead)
    else:
        evidence = f"{evidence}: {outcome.value}, but '{line.says}' is claimed"
        yield Finding(Kind.IMPOSSIBLE, "verdict", evidence, f"Write {outcome.value}.")
