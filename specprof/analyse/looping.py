"""Gate 7's evidence: the figures of a cell with and without the text that repeats itself or outran its own end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specprof.analyse import stats
from specprof.analyse.evidence import NOTHING, Evidence, Key, Series
from specprof.analyse.results import Figure, Loops
from specprof.records import Role, Stop
from specprof.study.loops import looping_tokens


def own_ends(evidence: Evidence, key: Key) -> dict[str, int]:
    """Where each text would have ended: output length of the natural run of the same prompt, if it stopped itself."""
    tag, _, arm, _ = key
    ends: dict[str, int] = {}
    for (t, _, a, _), series in evidence.series.items():
        if (t, a) == (tag, arm) and series.cell.stop is Stop.NATURAL and series.cell.role is Role.FIGURE:
            for frame in series.frames:
                stopped = frame.requests[frame.requests["finish_reason"] == "stop"]
                ends |= dict(zip(stopped["prompt_id"], stopped["output_tokens"].astype(int), strict=True))
    return ends


def loop_evidence(series: Series, ends: Mapping[str, int]) -> Loops | None:
    """Tokens per step with, and without, looping windows and what lies beyond a text's own end.

    Steps are the chunks that arrived: one per engine step, unless the server merged some. The first is left out: it
    comes from the prompt, never carries a draft, and would weigh more in the shorter texts that remain.
    """
    all_tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    kept_tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    own_tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    looping: dict[str, bool] = {}
    total = flagged_total = num_flagged = ended = 0
    forced = series.cell.stop is Stop.FORCED
    for frame in series.frames:
        names = frame.requests["prompt_id"]
        for name, ids, chunks in zip(names, frame.lists("token_ids"), frame.lists("chunk_tokens"), strict=True):
            if not len(ids):
                continue  # the server does not say which tokens it wrote
            flags = looping_tokens(ids)
            looping[name] = looping.get(name, False) or bool(flags.any())
            num_flagged += bool(flags.any())
            total, flagged_total = total + len(ids), flagged_total + int(flags.sum())
            later, last_of_chunk = chunks[1:], (np.cumsum(chunks) - 1)[1:]
            _add(all_tokens[name], later, last_of_chunk >= 0)
            _add(kept_tokens[name], later, ~flags[last_of_chunk])
            end = ends.get(name, len(ids)) if forced else len(ids)
            ended += end < len(ids)
            _add(own_tokens[name], later, last_of_chunk < end)
    if not total:
        return None
    calm = [name for name, loops in looping.items() if not loops]
    anything = flagged_total > 0
    return Loops(
        num_requests_flagged=num_flagged,
        share_of_tokens_flagged=flagged_total / total,
        prompt_ids=tuple(name for name, loops in looping.items() if loops),
        tokens_per_engine_step_unflagged=_tokens_per_step(kept_tokens) if anything else NOTHING,
        tokens_per_engine_step_before_eos=_tokens_per_step(own_tokens) if ended else NOTHING,
        acceptance_length_unflagged=_calm_ratio(series, calm, "num_accepted", "num_steps", 1.0)
        if anything
        else NOTHING,
        decode_speed_unflagged_tok_s=_calm_speed(series, calm) if anything else NOTHING,
        tokens_per_engine_step_all=_tokens_per_step(all_tokens),
    )


def _add(sums: list[int], chunks: NDArray[np.int64], keep: NDArray[np.bool_]) -> None:
    sums[0] += int(chunks[keep].sum())
    sums[1] += int(np.count_nonzero(keep))


def _tokens_per_step(sums: Mapping[str, list[int]]) -> Figure:
    tokens, steps = np.array(list(sums.values()), dtype=float).T
    return stats.ratio(tokens, steps)


def _calm_ratio(series: Series, calm: Sequence[str], over: str, under: str, offset: float) -> Figure:
    top, bottom = series.by_prompt(over), series.by_prompt(under)
    return stats.ratio(np.array([top[n] for n in calm]), np.array([bottom[n] for n in calm]), offset=offset)


def _calm_speed(series: Series, calm: Sequence[str]) -> Figure:
    speeds = [
        frame.requests.loc[frame.requests["prompt_id"].isin(calm), "decode_speed"].dropna().to_numpy(dtype=np.float64)
        for frame in series.frames
    ]
    return stats.median(np.concatenate(speeds))
