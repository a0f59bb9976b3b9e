"""Separating the gains, METHOD 4. X(arm, N) in tok/s on the same prompts; ratios of it, and how they fit together."""

from __future__ import annotations

from math import log

INTERACTION_MARGIN = 0.05  # batching and speculation may be multiplied only if their interaction is within this of 1


def batching_gain(at_n: float, at_one: float) -> float:
    """B = X(arm, N) / X(arm, 1)."""
    return at_n / at_one


def speculation_gain(on: float, off: float) -> float:
    """S = X(on, N) / X(off, N)."""
    return on / off


def interaction(gain_on: float, gain_off: float) -> float:
    """I = B(on) / B(off) = S(N) / S(1): how far the two gains are from multiplying."""
    return gain_on / gain_off


def step_time_ratio(tokens_per_step: float, off: float, on: float) -> float:
    """Duration of an engine step, on / off, of numbers that tell no more: as if as many streams wrote in both.

    Where each step was seen, `account.step_time_ratio` needs no such assumption.
    """
    return tokens_per_step * off / on


def mediated_share(tokens_per_step_ratio: float, throughput_ratio: float) -> float:
    """Share of Δln X that acceptance alone accounts for. NaN where nothing changed."""
    change = log(throughput_ratio)
    return log(tokens_per_step_ratio) / change if change else float("nan")


def residual(measured_ratio: float, *factors: float) -> float:
    """measured / product of factors - 1: what the account leaves over. Printed, never absorbed."""
    product = 1.0
    for factor in factors:
        product *= factor
    return measured_ratio / product - 1
