"""How a cell's work is split: everything once, in order, by place and number alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specprof.measure.load import Order
from specprof.measure.split import Share, Work, split
from specprof.records import Arrivals, Phase, phase_due

SIZES = st.integers(1, 12)
WORKERS = st.integers(1, 6)


def orders(tag: str, count: int, phase: Phase = Phase.MEASURED) -> tuple[Order, ...]:
    return tuple(Order(f"{tag}-{i}", phase, f"{tag}{i}".encode()) for i in range(count))


def closed(lane_sizes: list[int], streams: int, warmups: int = 0) -> Work:
    lanes = tuple(orders(f"lane{i}", size) for i, size in enumerate(lane_sizes))
    return Work("/v1/completions", orders("warm", warmups, Phase.WARMUP), lanes, streams * len(lane_sizes))


def scheduled(count: int, cap: int | None = None) -> Work:
    due_s = tuple(0.5 * i for i in range(count))
    arrivals = Arrivals("constant", 2.0, 1.0, 1.0, 2.0, 60.0, due_s, cap, tuple(range(1, count + 1)))
    lane = tuple(Order(f"p-{i}", phase_due(arrivals, due), b"") for i, due in enumerate(due_s))
    return Work("/v1/completions", (), (lane,), cap or 0, arrivals=arrivals)


def is_subsequence(part: tuple[Order, ...], whole: tuple[Order, ...]) -> bool:
    rest = iter(whole)
    return all(order in rest for order in part)


def streams_of(shares: tuple[Share, ...]) -> list[int]:
    return [share.stream(own) for share in shares for own in range(share.work.concurrency)]


@given(lane_sizes=st.lists(SIZES, min_size=1, max_size=3), streams=SIZES, warmups=st.integers(0, 9), workers=WORKERS)
def test_a_closed_loop_keeps_its_streams_and_every_order_once(
    lane_sizes: list[int], streams: int, warmups: int, workers: int
) -> None:
    work = closed(lane_sizes, streams, warmups)
    shares = split(work, workers)
    assert 1 <= len(shares) <= workers
    assert sorted(streams_of(shares)) == list(range(work.concurrency))
    assert Counter(o for share in shares for o in share.work.orders) == Counter(work.orders)
    assert Counter(o for share in shares for o in share.work.warmups) == Counter(work.warmups)
    for share in shares:
        assert all(share.work.lanes), "a worker without orders of a content would leave its streams idle"
        for lane, (part, whole) in enumerate(zip(share.work.lanes, work.lanes, strict=True)):
            assert is_subsequence(part, whole)
            for own in range(lane, share.work.concurrency, len(work.lanes)):  # the streams that send this lane
                assert share.stream(own) % len(work.lanes) == lane
    assert split(work, workers) == shares


@given(streams=SIZES, rounds=st.integers(1, 4), workers=WORKERS)
def test_as_many_orders_as_streams(streams: int, rounds: int, workers: int) -> None:
    """Where every stream of one client would send as many, every worker's streams do."""
    for share in split(closed([streams * rounds], streams), workers):
        assert len(share.work.orders) == rounds * share.work.concurrency


@given(streams=SIZES, workers=WORKERS)
def test_the_first_orders_go_out_on_the_streams_that_one_client_sends_them_on(streams: int, workers: int) -> None:
    work = closed([streams], streams)
    sent_on = {
        order.prompt_id: share.stream(own)
        for share in split(work, workers)
        for own, order in enumerate(share.work.orders)
    }
    assert sent_on == {order.prompt_id: i for i, order in enumerate(work.orders)}


@given(count=SIZES, cap=st.none() | SIZES, workers=WORKERS)
def test_a_schedule_is_split_by_place_and_its_cap_shared_out(count: int, cap: int | None, workers: int) -> None:
    work = scheduled(count, cap)
    assert work.arrivals is not None
    found = {}
    caps = []
    for share in split(work, workers):
        mine = share.work.arrivals
        assert mine is not None
        assert len(mine.due_s) == len(mine.output_tokens) == len(share.work.orders) >= 1
        assert (mine.warmup_s, mine.duration_s, mine.timeout_s) == (1.0, 2.0, 60.0)
        caps.append(mine.max_concurrency)
        for own, order in enumerate(share.work.orders):
            found[share.stream(own)] = (order, mine.due_s[own], mine.output_tokens[own])
    whole = zip(work.orders, work.arrivals.due_s, work.arrivals.output_tokens, strict=True)
    assert found == dict(enumerate(whole))
    if cap is None:
        assert set(caps) == {None}
    else:
        assert all(caps)
        assert sum(caps) == cap


@given(workers=WORKERS)
def test_a_newcomer_among_decoders_stays_with_one_client(workers: int) -> None:
    work = Work("/v1/completions", (), (orders("p", 5),), 5, after_reads=16)
    (share,) = split(work, workers)
    assert share.work == work
    assert [share.stream(own) for own in range(5)] == list(range(5))
