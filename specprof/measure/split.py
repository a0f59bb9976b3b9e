"""One cell's work, and its shares for several clients: decided by place and number alone, never by who is faster.

A closed loop of N streams stays one of N streams. Stream i belongs to worker i mod n, and order k to the worker of
stream k mod N, so that a worker's share of the orders is that of its streams; its own streams take them in turn, each
the next as soon as its last one ended. What is given up is that the last orders go to whichever stream of all is free:
towards the end one worker may still write while another has nothing left.

An open loop's request i belongs to worker i mod n and keeps its place in the schedule; a cap is shared out. Of a mix
every worker has streams of every content, as many of one as of another. A newcomer among decoders is not split: when it
is sent depends on what all of them have read, which one client must see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specprof.measure.load import Order
from specprof.records import Arrivals, Phase


@dataclass(frozen=True, slots=True)
class Work:
    """What a client sends in one cell, encoded and ready to be handed to another process.

    `lanes` holds the orders of each content of a mix, else all of them as one lane; `concurrency` counts streams of all
    lanes. `after_reads`, of interference: the newcomer, the first order, is sent when all others were read so often.
    """

    path: str
    warmups: tuple[Order, ...]
    lanes: tuple[tuple[Order, ...], ...]
    concurrency: int
    arrivals: Arrivals | None = None
    after_reads: int | None = None
    time_scale: float = 1.0

    @property
    def orders(self) -> tuple[Order, ...]:
        """All that is sent after the warm-up."""
        return tuple(order for lane in self.lanes for order in lane)

    @property
    def num_counted(self) -> int:
        """How many requests are told as done, one by one: all but those that only keep the load up."""
        return sum(order.phase is not Phase.FILL for order in self.orders)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a cell's work."""

    work: Work
    worker: int
    num_workers: int  # of which have a part
    width: int = 1  # streams that go to a worker together: one of each content

    def stream(self, own: int) -> int:
        """The number among all streams (of an open loop: the place in the schedule) of the worker's own number."""
        place, lane = divmod(own, self.width)
        return (place * self.num_workers + self.worker) * self.width + lane


def split(work: Work, num_workers: int) -> tuple[Share, ...]:
    """The shares of at most `num_workers` workers: fewer where there is less to share than workers."""
    if work.after_reads is not None:
        return (Share(work, 0, 1),)
    if work.arrivals is not None:
        return _scheduled(work, work.arrivals, num_workers)
    return _in_streams(work, num_workers)


def _in_streams(work: Work, wanted: int) -> tuple[Share, ...]:
    """Streams in turn, `width` at once; a lane's orders by the stream that one client would first have sent them on."""
    width = len(work.lanes)
    places = work.concurrency // width  # streams of each lane
    num = max(1, min(wanted, places, *map(len, work.lanes)))

    def share(worker: int) -> Share:
        mine = replace(
            work,
            warmups=work.warmups[worker::num],
            lanes=tuple(
                tuple(order for k, order in enumerate(lane) if k % places % num == worker) for lane in work.lanes
            ),
            concurrency=len(range(worker, places, num)) * width,
        )
        return Share(mine, worker, num, width)

    return tuple(map(share, range(num)))


def _scheduled(work: Work, arrivals: Arrivals, wanted: int) -> tuple[Share, ...]:
    (orders,) = work.lanes
    cap = arrivals.max_concurrency
    num = max(1, min(wanted, len(orders), *([cap] if cap else [])))

    def share(worker: int) -> Share:
        mine = replace(
            arrivals,
            rate_per_s=arrivals.rate_per_s / num,
            due_s=arrivals.due_s[worker::num],
            output_tokens=arrivals.output_tokens[worker::num],
            max_concurrency=None if cap is None else len(range(worker, cap, num)),
        )
        return Share(replace(work, lanes=(orders[worker::num],), arrivals=mine), worker, num)

    return tuple(map(share, range(num)))
