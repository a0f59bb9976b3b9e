"""What other prompts, or another order of the same ones, would have changed: the closed loop, run again on paper.

With more streams than one, the wall depends on which prompts come last as well as on how long each takes: the batch is
one unit (METHOD 5). So prompts are not averaged but scheduled: N streams, each taking the next prompt when it is free.
Which prompts were drawn is judged by a jackknife, each prompt left out in turn and the rest scheduled in many orders;
what the order did shows by itself between blocks, which draw new ones, and is worked out here for a single block.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specprof.analyse.stats import Array, variance_of_mean

ORDERS = 200
MANY_WAVES = 50  # beyond this many prompts a stream, the tail no longer matters and the sum of latencies is the wall
MANY_PROMPTS = 200  # beyond this many, leaving one out moves only the mean
AT_A_TIME = 20  # prompts replaced in one go: more would not fit a core's cache

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
        seconds, log_tokens = (np.array([of[name] for name in names]) for of in (self.seconds, self.log_tokens))
        tokens = np.exp(log_tokens)[orders].sum(axis=1)
        return np.asarray(np.log(tokens) - np.log(walls(seconds, self.concurrency, orders, self.pace)))

    def replaced(self, names: tuple[str, ...]) -> Array:
        """ln X with each of these prompts in turn replaced by another of them, in many orders. Shape (names, ORDERS).

        A study asks this of a loop once for every ratio that it is part of; it is answered once.
        """
        if names not in self._replaced:
            self._replaced[names] = np.concatenate(
                [self.log_throughputs(names, orders).reshape(-1, ORDERS) for orders in _with_one_replaced(len(names))]
            )
        return self._replaced[names]


def random_orders(count: int, seed: int = 0) -> Orders:
    """`ORDERS` permutations of `count` prompts. Shape (ORDERS, count)."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)


def walls(seconds: Array, concurrency: int, orders: Orders, pace: Array | None = None) -> Array:
    """Seconds the closed loop would have taken in each order. Shape (len(orders),).

    `seconds`: one per prompt, with all streams writing. When prompts run out the batch thins and goes on at `pace`.
    """
    taken = seconds[orders]
    if concurrency == 1 or taken.shape[1] > MANY_WAVES * concurrency:
        return np.asarray(taken.sum(axis=1) / concurrency)
    free_at = np.zeros((len(taken), concurrency))
    begun = min(taken.shape[1], concurrency)
    free_at[:, :begun] = taken[:, :begun]
    streams = free_at.ravel()
    first = np.arange(len(taken)) * concurrency
    for column in taken[:, begun:].T:
        streams[first + free_at.argmin(axis=1)] += column
    ends = np.sort(free_at, axis=1)
    if pace is None:
        return np.asarray(ends[:, -1])
    thinning = pace[-2::-1]  # with N-1, N-2, … 1 streams left
    return np.asarray(ends[:, 0] + (np.diff(ends, axis=1) * thinning).sum(axis=1))


def prompt_variance(terms: Sequence[tuple[Loop, int]]) -> tuple[float, int]:
    """Variance that another draw of prompts would bring to a weighted sum of ln X, and its degrees of freedom."""
    names = _shared(terms)
    n = len(names)
    if n < 2:
        return 0.0, 0
    if n > MANY_PROMPTS or all(loop.concurrency == 1 for loop, _ in terms):
        rates = np.zeros(n)
        for loop, weight in terms:
            tokens, seconds = (np.array([of[name] for name in names]) for of in (loop.log_tokens, loop.seconds))
            rates += weight * (tokens - np.log(seconds))
        return variance_of_mean(rates)
    replaced = np.zeros((n, ORDERS))
    for loop, weight in terms:
        replaced += weight * loop.replaced(names)
    return _between_rows(replaced) * (n - 1), n - 1


def _with_one_replaced(count: int) -> Iterator[Orders]:
    """Random orders of `count` prompts, and for each prompt the same ones with another in its place; some at a time."""
    orders = random_orders(count)
    rng = np.random.default_rng(1)
    others = rng.integers(1, count, len(orders))[:, None]  # how far along the list the prompt lies that takes its place
    for some in np.array_split(np.arange(count), -(-count // AT_A_TIME)):
        one = some[:, None, None]
        yield np.where(orders == one, (one + others) % count, orders).reshape(-1, count)


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
    return tuple(sorted(name for name in terms[0][0].seconds if all(name in loop.seconds for loop, _ in terms)))
