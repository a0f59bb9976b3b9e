"""The figures of one cell series, METHOD 1 and 3: speeds, latencies, acceptance, and where the wall went."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import percentiles, stats, wall
from specprof.analyse.acceptance import conditional
from specprof.analyse.attached import counted_acceptance
from specprof.analyse.evidence import Key, Series, contrast
from specprof.analyse.percentiles import of_requests
from specprof.analyse.results import (
    NOTHING,
    AcceptanceCounts,
    CellFigures,
    Figure,
    GateFinding,
    Loops,
)
from specprof.ragged import Ragged
from specprof.records import arm_in_words, draft_length


def cell_figures(
    key: Key, series: Series, *, prefill_speed: float | None, loops: Loops | None, gates: tuple[GateFinding, ...]
) -> CellFigures:
    """Every METHOD 1 figure of a series. `prefill_speed` (tok/s): of the same prompts, arm and N, read at once."""
    tag, protocol, arm, concurrency = key
    cell = series.cell
    drafted = bool(series.pooled("num_steps").sum())
    counted = None if drafted else counted_acceptance(series)
    throughput = contrast([(series, 1)])
    predicted = _predicted_wall(series, prefill_speed)
    wall_s = float(np.mean([frame.wall_s for frame in series.frames]))
    tokens = float(series.pooled("output_tokens").sum()) / len(series.frames)
    tpot = float(np.mean([frame.tpot_s for frame in series.frames]))
    queue_share, prefill_share, decode_share = shares_of_time(series)
    survived = _survival(series) if drafted else ()
    return CellFigures(
        tag=tag,
        protocol=protocol,
        stop=cell.stop.value,
        length=cell.max_tokens,
        arm=arm,
        method=arm_in_words(cell.speculative_config),
        concurrency=concurrency,
        num_requests=len(series.pooled("e2el")),
        num_launches=len({frame.data.launch for frame in series.frames}),
        prompt_tokens=_prompt_tokens(series),
        output_tokens=percentiles.median(of_requests(series, "output_tokens")),
        throughput_tok_s=throughput,
        decode_speed_tok_s=percentiles.median(of_requests(series, "decode_speed")),
        ttft_s=percentiles.percentiles(of_requests(series, "ttft")),
        tpot_s=percentiles.percentiles(of_requests(series, "tpot")),
        itl_s=percentiles.percentiles(percentiles.of_gaps(series)),
        e2el_s=percentiles.percentiles(of_requests(series, "e2el")),
        chars_per_s=throughput.scaled(_chars_per_token(series)),
        acceptance_length=stats.ratio(*series.clusters("num_accepted", "num_steps"), offset=1.0)
        if drafted
        else (counted.length if counted else None),
        acceptance_length_request_mean=_request_mean(series) if drafted else None,
        acceptance_rate=_acceptance_rate(series) or (counted.rate if counted else None),
        survival=survived,
        conditional=tuple(stats.point(v) for v in conditional([s.value or 0.0 for s in survived])),
        acceptance_counts=(counted.counts if counted else _counts(series)) if cell.speculative_config else None,
        tokens_per_engine_step=stats.ratio(*series.clusters("output_tokens", "engine_steps")),
        wall_s=Figure(wall_s),
        predicted_wall_s=Figure(predicted),
        queue_share=queue_share,
        prefill_share=prefill_share,
        decode_share=decode_share,
        prefill_speed_tok_s=Figure(prefill_speed),
        effective_concurrency=stats.point(wall.effective_concurrency(throughput.value or 0.0, tpot)),
        predicted_throughput_tok_s=Figure(wall.throughput(tokens, predicted) if predicted else None),
        prediction_error=Figure(predicted / wall_s - 1 if predicted else None),
        sum_of_rates_tok_s=stats.point(_sum_of_rates(series)),
        loops=loops,
        gates=gates,
        num_prompts=len(series.prompts.names),
    )


def _prompt_tokens(series: Series) -> Figure:
    if not series.pooled("prompt_tokens").any():
        return NOTHING  # 0 where the server does not count them
    return percentiles.median(of_requests(series, "prompt_tokens"))


def _predicted_wall(series: Series, prefill_speed: float | None) -> float | None:
    """METHOD 3 for a closed loop: all prompts are read, and the stream with most to write writes it."""
    if not prefill_speed:
        return None
    walls = []
    for frame in series.frames:
        requests = frame.requests
        longest = float(requests.by_stream(np.add, requests.output_tokens).max())
        reading = wall.prefill_time(float(requests.prompt_tokens.sum()), prefill_speed)
        if frame.tpot_s > 0:
            walls.append(wall.predicted_wall(reading, longest, 1 / frame.tpot_s))
    return float(np.mean(walls)) if walls else None


def shares_of_time(series: Series) -> tuple[Figure, Figure, Figure]:
    """Shares of all streams' time spent waiting at the server, reading (TTFT less that) and writing.

    Where the server does not tell its queue, that is inside the reading.
    """
    total, until_first, queued = (series.pooled(name).sum() for name in ("e2el", "ttft", "queue_s"))
    if not total:
        return NOTHING, NOTHING, NOTHING
    told = len(series.pooled("queue_s")) > 0
    reading, writing = until_first - queued, total - until_first
    return (
        Figure(float(queued / total)) if told else NOTHING,
        Figure(float(reading / total)),
        Figure(float(writing / total)),
    )


def _chars_per_token(series: Series) -> float:
    return float(series.pooled("chars").sum() / max(series.pooled("output_tokens").sum(), 1))


def _sum_of_rates(series: Series) -> float:
    streams = min(series.cell.concurrency, len(series.frames[0].requests))
    speeds = series.pooled("decode_speed")
    return float(speeds.mean()) * streams if len(speeds) else float("nan")


def _counts(series: Series) -> AcceptanceCounts:
    return AcceptanceCounts(*(int(series.pooled(name).sum()) for name in ("num_steps", "num_drafted", "num_accepted")))


def _acceptance_rate(series: Series) -> Figure | None:
    """None where nothing was drafted, as far as the requests tell."""
    drafted = series.pooled("num_drafted").sum()
    return stats.ratio(*series.clusters("num_accepted", "num_drafted")) if drafted else None


def _request_mean(series: Series) -> Figure:
    accepted, steps = series.clusters("num_accepted", "num_steps")
    lengths = 1 + accepted[steps > 0] / steps[steps > 0]
    return stats.ratio(lengths, np.ones(len(lengths)))


def _survival(series: Series) -> tuple[Figure, ...]:
    """S_j; empty where the server does not tell its verification steps one by one."""
    steps = [frame.lists("accepted_per_step") for frame in series.frames]
    if not any(len(one.values) for one in steps):
        return ()
    under = series.sums("num_steps")
    held = np.concatenate([_accepted_at(one, draft_length(series.cell.speculative_config)) for one in steps])
    return tuple(stats.ratio(series.prompts.sums(column), under) for column in held.T)


def _accepted_at(steps: Ragged, positions: int) -> NDArray[np.int64]:
    """How many steps of each request accepted draft position 1, 2, …; shape (requests, positions)."""
    owner = steps.owner
    columns = [np.bincount(owner[steps.values >= j], minlength=len(steps)) for j in range(1, positions + 1)]
    return np.column_stack(columns) if columns else np.empty((len(steps), 0), dtype=np.int64)
