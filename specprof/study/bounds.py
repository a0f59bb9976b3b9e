"""Arms nobody would serve with: they show how far a draft can go, and how far down."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Bound(StrEnum):
    """What an arm is a bound of."""

    UPPER = "upper bound"  # the target drafting for itself: everything is accepted, at the highest price
    LOWER = "lower bound"  # random weights: only chance is accepted, and the price remains


def bound_of(speculative_config: Mapping[str, Any] | None, target: str) -> Bound | None:
    """The bound an arm's flags make it; None for an arm that is a candidate. `target`: the engine's model as named.

    MTP and EAGLE heads may name the target as their model; only a draft model of the same name is the target.
    """
    flags = speculative_config or {}
    model = str(flags.get("model") or "")
    if model.startswith("random:"):
        return Bound.LOWER
    is_model = flags.get("method") in (None, "draft_model")
    return Bound.UPPER if is_model and model and model == target else None
