"""What the step-time model says of a study, in lines: its error first, then crossovers and draft lengths."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from specprof.analyse.modelled import BestDraft, Crossover, ModelFigures
from specprof.analyse.results import as_json
from specprof.publish.decisions import Crossing
from specprof.publish.numbers import known, one_line, percent


def without_arms(model: ModelFigures, arms: Collection[str]) -> ModelFigures:
    """The same model, silent on where some arms stop gaining and on their draft lengths: bounds are no candidates."""
    return replace(
        model,
        crossovers=tuple(cross for cross in model.crossovers if cross.arm not in arms),
        best=tuple(best for best in model.best if best.drafter not in arms),
    )


def model_document(model: ModelFigures) -> dict[str, Any]:
    """The model as plain data: error on cells it was not fitted to, N*, K*."""
    return {
        "held_out_cells": len(model.held_out),
        "median_error": as_json(model.median_error),
        "p90_error": as_json(model.p90_error),
        "crossovers": as_json(list(model.crossovers)),
        "best_draft_lengths": as_json(list(model.best)),
        "notes": list(model.notes),
    }


def model_lines(model: ModelFigures, methods: Mapping[str, str]) -> Iterator[str]:
    """The same in words. `methods`: what each arm does."""
    if known(model.median_error) and known(model.p90_error):
        yield (
            "Fitted to the smallest and largest N and K of each draft, then asked for the "
            f"{len(model.held_out)} cells left out: median error {percent(model.median_error)}, "
            f"nine in ten within {percent(model.p90_error)}."
        )
    for arm in dict.fromkeys(cross.arm for cross in model.crossovers):
        told = [_crossing(cross) for cross in model.crossovers if cross.arm == arm]
        yield f"N*, where {one_line(methods.get(arm, arm))} stops gaining: {'; '.join(told)}."
    for drafter in _several_lengths(model.best):
        told = [_length(best) for best in model.best if best.drafter == drafter]
        yield f"K* of {one_line(methods.get(drafter, drafter))} and its like: {'; '.join(told)}."
    yield from model.notes


def _crossing(cross: Crossover) -> str:
    tag, streams = one_line(cross.tag), cross.concurrency
    if not known(streams.value):
        return f"{tag} {'beyond the most' if cross.where == 'above' else 'below the fewest'} measured"
    at = Crossing.at(streams.value, streams, bounded=bool(cross.span)).words(cross.span)
    return f"{tag} at {at} streams{' (modelled)' if cross.modelled else ''}"


def _several_lengths(best: tuple[BestDraft, ...]) -> list[str]:
    """Drafters that were measured with more than one K on some content, whichever of them won."""
    return list(dict.fromkeys(one.drafter for one in best if len(one.offered) > 1))


def _length(best: BestDraft) -> str:
    return f"{one_line(best.tag)} N={best.concurrency} K={best.draft_tokens}{' (modelled)' if best.modelled else ''}"
