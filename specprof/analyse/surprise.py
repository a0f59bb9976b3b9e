"""Gate 8, sampled: what the target, speculation off, thinks of the texts that each arm wrote at T > 0 (METHOD 7).

The engine scores a text under its bare distribution, with the 20 most likely tokens of each place. The distribution
that was sampled from has temperature, top-k and top-p applied, and what 20 tokens cannot tell of it is bounded, never
guessed: every surprise here is *at least* so many nats. In nats, with l a raw log probability, S = Σ exp(l_i / T) and
p = top-p, the least share of S that top-p leaves to choose from:

    surprise = ln S + ln p - l / T,   exact at T = 1 and p = 1, and within `slack_nats` where T <= 1

The bound that is taken is the one that can acquit and never accuse: a token is beyond 10 nats only if it certainly is.
Where a repetition penalty, a masked end or a grammar shaped the distribution, raw scores cannot say what was possible;
tail and mean are still compared, since both arms were shaped alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specprof.analyse.frames import CellFrame
from specprof.analyse.requests import Mask
from specprof.analyse.stats import Array
from specprof.records import Cell, Sampling

IMPOSSIBLE_NATS = -log(1e-8)
TAIL_NATS = (8.0, 10.0)
ROUNDING_NATS = 0.5  # two passes of one text in bfloat16 differ by less than this; closer rivals may change places


@dataclass(frozen=True)
class Surprises:
    """The tokens of one text: nats each is surprising by at least, by how much it may be more, and which are excluded.

    `excluded`: certainly outside what top-k or top-p left to choose from. `slack_nats` is None where the rest of the
    vocabulary leaves it open (T > 1).
    """

    nats: Array
    slack_nats: Array | None
    excluded: Mask


@dataclass(frozen=True)
class ScoredCell:
    """One cell's texts, scored. `known`: whether the scores tell what could have been sampled at all."""

    cell: Cell
    texts: tuple[tuple[str, Surprises], ...]
    num_unscored: int
    known: bool


def scored_cell(frame: CellFrame, scores: pa.Table) -> ScoredCell:
    """A cell's texts with the target's opinion of them."""
    cell, sampling = frame.cell, frame.cell.sampling
    rows = scores.to_pylist()
    texts = tuple((row["prompt_id"], _surprises(row, sampling)) for row in rows if row["error"] is None)
    known = sampling.repetition_penalty == 1.0 and not cell.mask_eos and not cell.guided
    return ScoredCell(cell, texts, len(frame.requests) - len(texts), known)


def _surprises(row: Mapping[str, Any], sampling: Sampling) -> Surprises:
    own, top = np.array(row["logprobs"], dtype=np.float64), _matrix(row["top_logprobs"])
    return surprises(own, np.array(row["ranks"]), top, sampling)


def _matrix(lists: list[list[float]]) -> Array:
    """One row per token; a vocabulary too small for 20 leaves places that nothing holds."""
    width = max(map(len, lists), default=0)
    return np.array([[*row, *[-np.inf] * (width - len(row))] for row in lists], dtype=np.float64).reshape(-1, width)


def surprises(own: Array, ranks: NDArray[np.int64], top: Array, sampling: Sampling) -> Surprises:
    """Raw log probabilities of the tokens written (n,), their ranks, and those of the most likely tokens (n, m)."""
    ln_sum, slack = _normaliser(own, ranks, top, sampling)
    ln_kept = log(sampling.top_p)  # of the share of S that top-p leaves: at least this, and at most 0
    nats = ln_sum + ln_kept - own / sampling.temperature
    excluded = _outside_top_k(own, ranks, top, sampling) | _outside_top_p(own, top, sampling, ln_sum, slack)
    return Surprises(np.maximum(nats, 0.0), None if slack is None else slack - ln_kept, excluded)


def _normaliser(own: Array, ranks: NDArray[np.int64], top: Array, sampling: Sampling) -> tuple[Array, Array | None]:
    """ln S at least, and how much more it may be. S sums exp(l / T) over the tokens that top-k left.

    Of the tokens not listed only their joint probability R is known, and that none is likelier than the last one
    listed, p. Each has p_i^(1/T) = p_i * p_i^(1/T - 1), so together at most R * p^(1/T - 1) for T <= 1, and at least
    that for T >= 1.
    """
    temperature, inverse = sampling.temperature, 1.0 / sampling.temperature
    if 0 < sampling.top_k <= top.shape[1]:
        return _log_sum(top[:, : sampling.top_k] * inverse), np.zeros(len(own))
    listed = np.hstack([top, np.where(ranks > top.shape[1], own, -np.inf)[:, None]])
    told = _log_sum(listed * inverse)
    with np.errstate(divide="ignore"):
        unlisted = np.log(np.clip(1.0 - np.exp(listed).sum(axis=1), 0.0, 1.0))
    whole = np.logaddexp(told, unlisted + top[:, -1] * (inverse - 1.0))
    all_left = sampling.top_k == 0  # a k beyond the list leaves some of the unlisted, nobody knows how many
    least = whole if temperature >= 1 and all_left else told
    return least, whole - least if temperature <= 1 else None


def _log_sum(values: Array) -> Array:
    most = values.max(axis=1)
    return np.asarray(most + np.log(np.exp(values - most[:, None]).sum(axis=1)))


def _outside_top_k(own: Array, ranks: NDArray[np.int64], top: Array, sampling: Sampling) -> Mask:
    """Tokens with at least k others clearly likelier; where k is beyond the list, those twice as far down as k."""
    if sampling.top_k <= 0:
        return np.zeros(len(own), dtype=bool)
    if sampling.top_k > top.shape[1]:
        return np.asarray(ranks > 2 * sampling.top_k)
    return np.asarray(_clearly_likelier(own, top).sum(axis=1) >= sampling.top_k)


def _outside_top_p(own: Array, top: Array, sampling: Sampling, ln_sum: Array, slack: Array | None) -> Mask:
    """Tokens whose clearly likelier rivals alone hold what top-p leaves, and half of the rest: no rounding does that.

    With T > 1 S has no upper bound here, so nothing can be said for certain.
    """
    if sampling.top_p >= 1.0 or slack is None:
        return np.zeros(len(own), dtype=bool)
    scaled = np.exp(top / sampling.temperature - (ln_sum + slack)[:, None])
    held = np.where(_clearly_likelier(own, top), scaled, 0.0).sum(axis=1)
    return np.asarray(held >= (1.0 + sampling.top_p) / 2)


def _clearly_likelier(own: Array, top: Array) -> Mask:
    return np.asarray(top > own[:, None] + ROUNDING_NATS)
