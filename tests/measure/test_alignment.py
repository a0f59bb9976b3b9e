"""The offset of another clock: planted delays and drifts, the truth always within the error that is told."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from specprof.measure.alignment import Offset, measured_offset, throughout

WAYS_NS = st.integers(0, 50_000_000)


class Clocks:
    """Two clocks by one true time: ours, and one that reads `ahead_ns` more at the end of a way of planted length."""

    def __init__(self, ahead_ns: int, ways_ns: list[tuple[int, int]]) -> None:
        self.ahead_ns, self.ways_ns, self.now_ns = ahead_ns, iter(ways_ns), 1_000

    def ours(self) -> int:
        return self.now_ns

    async def theirs(self) -> int:
        there_ns, back_ns = next(self.ways_ns)
        self.now_ns += there_ns
        read_ns = self.now_ns + self.ahead_ns
        self.now_ns += back_ns
        return read_ns


@given(ahead_ns=st.integers(-(10**15), 10**15), ways_ns=st.lists(st.tuples(WAYS_NS, WAYS_NS), min_size=1, max_size=8))
def test_the_truth_is_within_the_error_and_the_shortest_round_trip_counts(
    ahead_ns: int, ways_ns: list[tuple[int, int]]
) -> None:
    clocks = Clocks(ahead_ns, ways_ns)
    found = asyncio.run(measured_offset(clocks.theirs, rounds=len(ways_ns), clock=clocks.ours))
    assert abs(found.offset_ns - ahead_ns) <= found.error_ns
    assert found.error_ns <= min(there + back for there, back in ways_ns) / 2 + 1
    assert found.here(found.there(12345)) == 12345


def test_a_way_that_takes_as_long_as_the_way_back_gives_the_offset_itself() -> None:
    clocks = Clocks(7_000_000, [(200, 200), (100, 100), (300, 300)])
    assert asyncio.run(measured_offset(clocks.theirs, rounds=3, clock=clocks.ours)) == Offset(7_000_000, 101)


@given(
    truths_ns=st.tuples(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9)),
    errors_ns=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    off=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    when=st.floats(0, 1),
)
def test_what_drifted_between_two_measurements_is_within_the_error_at_any_time(
    truths_ns: tuple[int, int], errors_ns: tuple[int, int], off: tuple[float, float], when: float
) -> None:
    before, after = (
        Offset(truth + int(share * error), error) for truth, error, share in zip(truths_ns, errors_ns, off, strict=True)
    )
    held = throughout(before, after)
    truth_ns = truths_ns[0] + when * (truths_ns[1] - truths_ns[0])
    assert abs(held.offset_ns - truth_ns) <= held.error_ns
