"""What other prompts, or another order of the same ones, would have changed: the closed loop, run again on paper.

With more streams than one, the wall depends on which prompts come last as well as on how long each takes: the batch is
one unit (METHOD 5). So prompts are not averaged but scheduled: N streams, each taking the next prompt when it is free.
Which prompts were drawn is judged by a jackknife, each prompt left out in turn and the rest scheduled in many orders;
what the order did shows by itself between blocks, which draw new ones, and is worked out here for a single block.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specprof.analyse.stats import Array, variance_of_mean

ORDERS = 200
MANY_WAVES = 50  # beyond this many prompts a stream, the tail no longer matters and the sum of latencies is the wall
MANY_PROMPTS = 200  # beyond this many, leaving one out moves only the mean
AT_A_TIME = 2**17  # instants of streams reckoned with in one go: more would not fit a core's cache

Orders = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Loop:
    """One closed loop: seconds and ln(output tokens) of each prompt, and the number of streams.

    `pace[m-1]`: seconds with m streams left ÷ seconds with all of them, for the same work. None: no stream is sped up
    by the others' leaving.
    """

    seconds: Mapping[str, float]
    log_tokens: Mapping[str, float]
    concurrency: int
    pace: Array | None = None
    _replaced: dict[tuple[str, ...], Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def only(self, names: Container[str]) -> Loop:
        """The same loop over some of its prompts."""
        return replace(self, seconds={name: value for name, value in self.seconds.items() if name in names})

    def log_throughputs(self, names: Sequence[str], orders: Orders) -> Array:
        """ln X of the loop over these prompts in each order. Shape (len(orders),)."""
        seconds, tokens = self.of(names)
        wall = walls(seconds, self.concurrency, orders, self.pace)
        return np.asarray(np.log(tokens[orders].sum(axis=1)) - np.log(wall))

    def replaced(self, names: tuple[str, ...]) -> Array:
        """ln X with each of these prompts in turn replaced by another of them, in many orders. Shape (names, ORDERS).

        A study asks this of a loop once for every ratio that it is part of; it is answered once.
        """
        if names not in self._replaced:
            orders = random_orders(len(names))
            others = _others(orders)
            seconds, tokens = self.of(names)
            wall = walls_with_one_replaced(seconds[orders], seconds[others], self.concurrency, self.pace)
            written = tokens[orders]
            total = written.sum(axis=1, keepdims=True) - written + tokens[others]
            found = np.empty((len(names), ORDERS))
            found[orders, np.arange(ORDERS)[:, None]] = np.log(total) - np.log(wall)
            self._replaced[names] = found
        return self._replaced[names]

    def of(self, names: Sequence[str]) -> tuple[Array, Array]:
        """Seconds and output tokens of these prompts."""
        seconds, log_tokens = (np.array([of[name] for name in names]) for of in (self.seconds, self.log_tokens))
        return seconds, np.exp(log_tokens)


def random_orders(count: int) -> Orders:
    """`ORDERS` permutations of `count` prompts, always the same. Shape (ORDERS, count)."""
    rng = np.random.default_rng(0)
    return rng.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)


def walls(seconds: Array, concurrency: int, orders: Orders, pace: Array | None = None) -> Array:
    """Seconds the closed loop would have taken in each order. Shape (len(orders),).

    `seconds`: one per prompt, with all streams writing. When prompts run out the batch thins and goes on at `pace`.
    """
    taken = seconds[orders]
    if _is_long(taken, concurrency):
        return np.asarray(taken.sum(axis=1) / concurrency)
    begun = min(taken.shape[1], concurrency)
    free_at = np.zeros((concurrency, len(taken)))
    free_at[concurrency - begun :] = np.sort(taken[:, :begun], axis=1).T
    for next_up in taken[:, begun:].T:
        _begin(free_at, next_up)
    return _wall(free_at, pace)


def walls_with_one_replaced(taken: Array, instead: Array, concurrency: int, pace: Array | None = None) -> Array:
    """The walls of orders in which the prompt in one place is another. Shape (orders, places), as both arguments have.

    `taken`: seconds of the prompt in each place of each order; `instead`: of the one that stands there in its stead.
    """
    if _is_long(taken, concurrency):
        return np.asarray((taken.sum(axis=1, keepdims=True) - taken + instead) / concurrency)
    num_parts = min(-(-taken.size * concurrency // AT_A_TIME), len(taken))
    parts = zip(np.array_split(taken, num_parts), np.array_split(instead, num_parts), strict=True)
    return np.concatenate([_branched_walls(*part, concurrency, pace) for part in parts])


def _branched_walls(taken: Array, instead: Array, concurrency: int, pace: Array | None) -> Array:
    """The same of some orders. Up to its place each loop is that of the order itself, and it branches off there."""
    num_orders, num_places = taken.shape
    begun = min(num_places, concurrency)
    first = np.repeat(taken[None, :, :begun], begun + 1, axis=0)
    first[np.arange(begun) + 1, :, np.arange(begun)] = instead[:, :begun].T
    free_at = np.zeros((concurrency, num_places + 1, num_orders))  # of the order itself, and of a branch for each place
    free_at[concurrency - begun :, : begun + 1] = np.sort(first, axis=2).transpose(2, 0, 1)
    for place in range(begun, num_places):
        loops = free_at[:, : place + 2]
        loops[:, -1] = loops[:, 0]
        next_up = np.repeat(taken[None, :, place], place + 2, axis=0)
        next_up[-1] = instead[:, place]
        _begin(loops, next_up)
    return _wall(free_at[:, 1:], pace).T


def _is_long(taken: Array, concurrency: int) -> bool:
    """Whether the sum of all latencies is the wall: one stream, or so many waves that the tail does not matter."""
    return concurrency == 1 or taken.shape[1] > MANY_WAVES * concurrency


def _begin(free_at: Array, seconds: Array) -> None:
    """Give the next prompt of each loop to its stream that is free first.

    `free_at`: when the streams of each loop are free, in rising order along the first axis, and in rising order again.
    """
    done = free_at[0] + seconds
    passed = np.minimum(free_at[1:], done)
    np.maximum(free_at[:-1], passed, out=free_at[:-1])
    np.maximum(free_at[-1], done, out=free_at[-1])


def _wall(ends: Array, pace: Array | None) -> Array:
    """When the last stream ends, if the others' leaving speeds it up by `pace`. `ends`: rising along the first axis."""
    if pace is None:
        return np.asarray(ends[-1])
    thinning = pace[-2::-1]  # with N-1, N-2, … 1 streams left
    return np.asarray(ends[0] + np.tensordot(thinning, np.diff(ends, axis=0), axes=1))


def prompt_variance(terms: Sequence[tuple[Loop, int]]) -> tuple[float, int]:
    """Variance that another draw of prompts would bring to a weighted sum of ln X, and its degrees of freedom."""
    names = _shared(terms)
    n = len(names)
    if n < 2:
        return 0.0, 0
    if n > MANY_PROMPTS or all(loop.concurrency == 1 for loop, _ in terms):
        variance, degrees = variance_of_mean(_left_out(terms, names))
        return variance * (n - 1) ** 2, degrees  # the jackknife's
    replaced = np.zeros((n, ORDERS))
    for loop, weight in terms:
        replaced += weight * loop.replaced(names)
    return _between_rows(replaced) * (n - 1), n - 1


def _left_out(terms: Sequence[tuple[Loop, int]], names: Sequence[str]) -> Array:
    """Weighted sum of ln X without each prompt in turn, where the sum of all latencies is the wall. Shape (names,).

    Less what it is with all of them. ln X is then ln(Σ tokens) - ln(Σ seconds) + a constant, in which a prompt weighs
    as much as it is long.
    """
    without = np.zeros(len(names))
    for loop, weight in terms:
        seconds, tokens = loop.of(names)
        without += weight * (np.log1p(-tokens / tokens.sum()) - np.log1p(-seconds / seconds.sum()))
    return without


def _others(orders: Orders) -> Orders:
    """For each place of each order the prompt that stands there in another's stead: so far along the list from it."""
    count = orders.shape[1]
    return np.asarray((orders + np.random.default_rng(1).integers(1, count, len(orders))[:, None]) % count)


def _between_rows(table: Array) -> float:
    """Variance of the rows' true means: that of their averages, less what so few columns add to it by chance."""
    num_rows, num_columns = table.shape
    residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    chance = float((residuals**2).sum()) / ((num_rows - 1) * (num_columns - 1)) / num_columns
    return float(max(table.mean(axis=1).var() - chance * (num_rows - 1) / num_rows, 0.0))


def order_variance(terms: Sequence[tuple[Loop, int]]) -> float:
    """Variance that another order of the same prompts would bring to a weighted sum of ln X."""
    names = _shared(terms)
    if len(names) < 2:
        return 0.0
    orders = random_orders(len(names))  # the same in every loop, as in a block
    total = np.zeros(len(orders))
    for loop, weight in terms:
        total += weight * loop.log_throughputs(names, orders)
    return float(np.var(total))


def _shared(terms: Sequence[tuple[Loop, int]]) -> tuple[str, ...]:
    """The prompts that every loop has."""
    return tuple(sorted(set.intersection(*(set(loop.seconds) for loop, _ in terms))))
