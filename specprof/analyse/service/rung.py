"""One rung: an offered rate of one content, protocol and arm over all the launches that climbed it, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import stats
from specprof.analyse.evidence import Series
from specprof.analyse.requests import Mask
from specprof.analyse.results import NOTHING, Figure, GateFinding, Percentiles, Severity
from specprof.analyse.service.cell import OpenCell
from specprof.analyse.service.spread import NUM_BATCHES, Latencies, ratio, share
from specprof.analyse.service_results import Fates, RungFigures, TargetFigures, Waterfall
from specprof.analyse.stats import CONFIDENCE, Array
from specprof.records import Arrivals, Cell, Counters, arm_in_words
from specprof.study.ladder import falls_behind, has_collapsed


@dataclass(frozen=True)
class Rung:
    """The cells of one rung, a launch each."""

    cells: tuple[OpenCell, ...]

    @property
    def cell(self) -> Cell:
        """Any of its cells: they differ by launch and by who came when, never by the rate."""
        return self.cells[0].cell

    @property
    def arrivals(self) -> Arrivals:
        """The schedule of any of them."""
        return self.cells[0].arrivals

    @cached_property
    def series(self) -> Series:
        """The same cells as closed loops are looked at: their measured requests that ended well."""
        return Series(tuple(cell.frame for cell in self.cells))

    def by_batch(self, count: Callable[[OpenCell], Array]) -> Array:
        """What is counted in each cell, by launch and batch. Shape (launches, NUM_BATCHES)."""
        return np.stack([count(cell) for cell in self.cells])

    @cached_property
    def due(self) -> Array:
        """Measured requests by launch and batch."""
        return self.by_batch(lambda cell: cell.due())

    @property
    def num_offered(self) -> int:
        """How many requests were due inside the windows."""
        return int(self.due.sum())

    @cached_property
    def num_lost(self) -> int:
        """How many of them failed or were given up."""
        return sum(int((cell.requests.measured & ~cell.requests.finished).sum()) for cell in self.cells)

    def on_target(self, confidence: float = CONFIDENCE) -> Figure:
        """Share of the measured requests that kept their latency targets."""
        return self.share_of_requests(lambda cell: cell.on_target, confidence)

    def share_of_requests(self, which: Callable[[OpenCell], Mask], confidence: float = CONFIDENCE) -> Figure:
        """Share of the measured requests."""
        hits = self.by_batch(lambda cell: cell.due(which(cell)))
        return share(hits, self.due, self.num_offered, confidence=confidence, effect=self.design_effect)

    @cached_property
    def design_effect(self) -> float:
        """How much alike neighbours are in the latencies that targets are named for."""
        named = {"ttft": self.targets.ttft_s, "tpot": self.targets.tpot_s, "e2el": self.targets.e2el_s}
        found = (self.latencies(column) for column, target in named.items() if target is not None)
        return max((told.design_effect()[0] for told in found if len(told.ordered)), default=1.0)

    def completed_share(self) -> Figure:
        """Requests completed inside the windows over those that were due there: 1 while the engine keeps up."""
        return ratio(self.by_batch(OpenCell.completed), self.due)

    def of_measured(self, of: Callable[[OpenCell], NDArray[Any]]) -> NDArray[Any]:
        """One value per request, of the measured requests of all cells."""
        return np.concatenate([of(cell)[cell.requests.measured] for cell in self.cells])

    def pooled(self, column: str) -> Array:
        """A request column over the measured requests of all cells; with NaN where there is nothing to tell."""
        return self.of_measured(lambda cell: getattr(cell.requests, column)).astype(float)

    def latencies(self, column: str) -> Latencies:
        """A request column; a request counts where it was due."""
        batches = [launch * NUM_BATCHES + c.batch_due[c.requests.measured] for launch, c in enumerate(self.cells)]
        return Latencies.of(self.pooled(column), np.concatenate(batches), len(self.cells))

    def percentiles(self, column: str) -> Percentiles | None:
        """The percentiles of a request column over the measured requests."""
        return self.latencies(column).percentiles()

    @property
    def targets(self) -> TargetFigures:
        """What was asked of every answer; marked where its contents are asked different things."""
        asked = {of_content for cell in self.cells for of_content in cell.targets.values()}
        return asked.pop() if len(asked) == 1 else TargetFigures(by_content=True)


def collapsed(rung: Rung) -> bool:
    """Whether the service is none any more at this rate, by the rule that ends the climbing (`study.ladder`)."""
    offered = rung.num_offered
    if not offered:
        return False
    on_target = rung.on_target().value or 0.0
    return has_collapsed(on_target, rung.num_lost / offered, behind=falls_behind(*_second_half(rung)))


def _second_half(rung: Rung) -> tuple[int, int, int]:
    """Requests offered and completed in the second half of the windows, and under way at its ends."""
    half = NUM_BATCHES // 2
    offered = int(rung.due[:, half:].sum())
    completed = int(rung.by_batch(OpenCell.completed)[:, half:].sum())
    under_way = 0
    for cell in rung.cells:
        due, done = cell.requests.scheduled, cell.requests.done
        ends = (cell.arrivals.duration_s / 2, cell.arrivals.duration_s)
        under_way += sum(int(((due < at) & (at <= done)).sum()) for at in ends)
    return offered, completed, under_way


def rung_figures(rung: Rung, gates: Sequence[GateFinding]) -> RungFigures:
    """Every figure of a rung."""
    cell, arrivals = rung.cell, rung.arrivals
    judged = all(c.judged for c in rung.cells)
    good_tokens, tokens = rung.by_batch(lambda c: c.tokens(c.good)), rung.by_batch(OpenCell.tokens)
    senders = sum(c.num_with_tokens() for c in rung.cells)
    return RungFigures(
        tag=cell.tag,
        protocol=cell.protocol,
        stop=cell.stop.value,
        length=max(arrivals.output_tokens, default=cell.max_tokens),
        arm=cell.arm,
        method=arm_in_words(cell.speculative_config),
        arrivals=arrivals_in_words(arrivals),
        rate_per_s=arrivals.rate_per_s,
        max_concurrency=arrivals.max_concurrency,
        duration_s=arrivals.duration_s,
        num_launches=len({c.frame.data.launch for c in rung.cells}),
        prompt_tokens=_prompt_tokens(rung),
        output_tokens=_output_tokens(rung),
        targets=rung.targets,
        completed_per_s=_per_second(rung, rung.by_batch(OpenCell.completed)),
        waterfall=_waterfall(rung, judged=judged),
        fates=_fates(rung),
        good_request_share=rung.share_of_requests(lambda c: c.good) if judged else NOTHING,
        good_token_share=share(good_tokens, tokens, senders, effect=rung.design_effect) if judged else NOTHING,
        on_target_share=rung.on_target(),
        ttft_s=rung.percentiles("ttft"),
        ttft_sent_s=rung.percentiles("ttft_sent"),
        e2el_s=rung.percentiles("e2el"),
        e2el_sent_s=rung.percentiles("e2el_sent"),
        tpot_s=rung.percentiles("tpot"),
        itl_s=_itl(rung),
        client_queue_s=rung.percentiles("client_queue"),
        server_queue_s=rung.percentiles("queue_s"),
        num_running=_gauge(rung, "num_requests_running"),
        num_waiting=_gauge(rung, "num_requests_waiting"),
        num_preemptions=_growth(rung, "num_preemptions"),
        dispatch_lag_p99_s=dispatch_lag(rung),
        acceptance_length=_acceptance_length(rung.series),
        collapsed=collapsed(rung),
        gates=tuple(gates),
        valid=not any(gate.severity is Severity.INVALID for gate in gates),
        tokens_per_engine_step=stats.ratio(*rung.series.clusters("output_tokens", "engine_steps")),
    )


def arrivals_in_words(arrivals: Arrivals) -> str:
    """`poisson`, `gamma burstiness 0.25`, `constant`, `trace`."""
    return f"gamma burstiness {arrivals.burstiness:g}" if arrivals.kind == "gamma" else arrivals.kind


def dispatch_lag(rung: Rung) -> float | None:
    """How late the client sent what was due, p99, in the worst of its cells; None where it did not take notice."""
    loads = [cell.frame.data.client for cell in rung.cells]
    lags = [load.dispatch_lag_p99_s for load in loads if load is not None and load.dispatch_lag_p99_s is not None]
    return max(lags, default=None)


def _per_second(rung: Rung, counts: Array) -> Figure:
    return ratio(counts, np.full(counts.shape, rung.cells[0].batch_s))


def _waterfall(rung: Rung, *, judged: bool) -> Waterfall:
    """Tokens that arrived inside the windows, of every request, and how many of those were of use."""

    def stage(of: Callable[[OpenCell], Array]) -> Figure:
        return _per_second(rung, rung.by_batch(of))

    return Waterfall(
        raw_tok_s=stage(OpenCell.tokens),
        finished_tok_s=stage(lambda cell: cell.tokens(cell.requests.finished)),
        on_time_tok_s=stage(lambda cell: cell.tokens(cell.on_target)),
        effective_tok_s=stage(lambda cell: cell.tokens(cell.good)) if judged else NOTHING,
    )


def _fates(rung: Rung) -> Fates:
    """How the measured requests ended. Where texts were not judged, none of them is called bad."""
    finished, timed_out = (rung.pooled(name) > 0 for name in ("finished", "timed_out"))
    kept, good = rung.of_measured(lambda cell: cell.on_target), rung.of_measured(lambda cell: cell.good)
    return Fates(
        offered=len(finished),
        good=int(good.sum()),
        late=int((finished & ~kept).sum()),
        bad=int((kept & ~good).sum()),
        failed=int((~finished & ~timed_out).sum()),
        timed_out=int(timed_out.sum()),
    )


def _prompt_tokens(rung: Rung) -> Figure:
    """Median over the measured requests whose prompt the engine has counted."""
    lengths = rung.pooled("prompt_tokens")
    return stats.median(lengths[lengths > 0])


def _output_tokens(rung: Rung) -> Figure:
    """Median over the measured requests that ended well."""
    return stats.median(rung.pooled("output_tokens")[rung.pooled("finished") > 0])


def _itl(rung: Rung) -> Percentiles | None:
    gaps = [cell.gaps() for cell in rung.cells]
    batches = [launch * NUM_BATCHES + ends for launch, (_, ends) in enumerate(gaps)]
    seconds = np.concatenate([of_cell for of_cell, _ in gaps])
    return Latencies.of(seconds, np.concatenate(batches), len(rung.cells)).percentiles()


def _gauge(rung: Rung, name: str) -> Figure:
    """Mean of a gauge of the server over its readings inside the windows."""
    read = [cell.gauges(name) for cell in rung.cells]
    return ratio(np.stack([sums for sums, _ in read]), np.stack([numbers for _, numbers in read]))


def _growth(rung: Rung, name: str) -> float | None:
    """By how much a counter of the server grew, over all cells; None where one does not tell."""

    def grown(before: Counters | None, after: Counters | None) -> float | None:
        start, end = (getattr(reading, name, None) for reading in (before, after))
        return None if start is None or end is None else float(end - start)

    told = [grown(cell.frame.data.before, cell.frame.data.after) for cell in rung.cells]
    return None if None in told else sum(value for value in told if value is not None)


def _acceptance_length(answered: Series) -> Figure | None:
    """AL of the measured requests that ended well, prompts as clusters; None where nothing was drafted."""
    if not answered.cell.speculative_config:
        return None
    accepted, steps = answered.clusters("num_accepted", "num_steps")
    return stats.ratio(accepted, steps, offset=1.0) if steps.sum() else None
