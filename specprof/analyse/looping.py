"""Gate 7's evidence: the figures of a cell with and without the text that repeats itself or outran its own end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specprof.analyse import percentiles, stats
from specprof.analyse.evidence import Evidence, Series, alike
from specprof.analyse.frames import CellFrame
from specprof.analyse.prompts import Prompts
from specprof.analyse.requests import Mask, Names
from specprof.analyse.results import NOTHING, Figure, Loops
from specprof.ragged import Indices
from specprof.records import Cell, Role, Stop


def own_ends(evidence: Evidence, cell: Cell) -> dict[str, int]:
    """Where each text would have ended: output length of the natural run of the same prompt, if it stopped itself.

    Of a run that wrote the same texts otherwise: a grammar, a template or a penalty would have ended them elsewhere.
    """
    ends: dict[str, int] = {}
    for _, series in evidence.series_of(Role.FIGURE):
        if series.cell.stop is Stop.NATURAL and alike(series.cell, cell, "tag", "arm", "sampling", "chat", "guided"):
            for frame in series.frames:
                stopped = frame.requests.where(frame.requests.finish_reason == "stop")
                ends |= dict(zip(stopped.prompt_id.tolist(), stopped.output_tokens.astype(int).tolist(), strict=True))
    return ends


def loop_evidence(series: Series, ends: Mapping[str, int]) -> Loops | None:
    """Tokens per step with, and without, looping windows and what lies beyond a text's own end.

    Steps are the chunks that arrived: one per engine step, unless the server merged some. The first is left out: it
    comes from the prompt, never carries a draft, and would weigh more in the shorter texts that remain. None where the
    server does not say which tokens it wrote.
    """
    cut = ends if series.cell.stop is Stop.FORCED else {}
    texts = [_Texts.of(frame, cut) for frame in series.frames]
    lengths, flagged = (np.concatenate([getattr(one, name) for one in texts]) for name in ("lengths", "flagged"))
    total = int(lengths.sum())
    if not total:
        return None
    prompts = Prompts.of(np.concatenate([one.prompt_ids for one in texts]))
    loops = prompts.sums(flagged > 0) > 0
    anything = bool(flagged.any())
    ended = any(one.num_ended for one in texts)

    def tokens_per_step(kept: str) -> Figure:
        parts = np.concatenate([getattr(one, kept) for one in texts])
        return stats.ratio(prompts.sums(parts[:, 0]), prompts.sums(parts[:, 1]))

    calm_names = frozenset(prompts.names[~loops])
    calm = np.array([name in calm_names for name in series.prompts.names], dtype=bool)
    return Loops(
        num_requests_flagged=int(np.count_nonzero(flagged)),
        share_of_tokens_flagged=int(flagged.sum()) / total,
        prompt_ids=tuple(prompts.names[loops]),
        tokens_per_engine_step_unflagged=tokens_per_step("unflagged") if anything else NOTHING,
        tokens_per_engine_step_before_eos=tokens_per_step("before_eos") if ended else NOTHING,
        acceptance_length_unflagged=_calm_acceptance(series, calm) if anything else NOTHING,
        decode_speed_unflagged_tok_s=_calm_speed(series, calm) if anything else NOTHING,
        tokens_per_engine_step_all=tokens_per_step("all"),
    )


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of a cell whose tokens are known: tokens, looping tokens, and (tokens, steps) of what is kept of them.

    Shapes: (texts,), and (texts, 2) for `all`, `unflagged` and `before_eos`.
    """

    prompt_ids: Names
    lengths: Indices
    flagged: Indices
    all: Indices
    unflagged: Indices
    before_eos: Indices
    num_ended: int  # texts that went on beyond their own end

    @classmethod
    def of(cls, frame: CellFrame, ends: Mapping[str, int]) -> _Texts:
        """`ends`: where each prompt's text would have ended, by prompt id."""
        ids, chunks, looping = frame.lists("token_ids"), frame.lists("chunk_tokens"), frame.repetition.looping
        named = ids.lengths > 0
        prompt_ids = frame.requests.prompt_id[named]
        lengths, owner = ids.lengths, chunks.owner
        later = np.concatenate([[False], chunks.has_next]) if len(owner) else np.empty(0, dtype=bool)
        later &= named[owner]
        up_to = np.cumsum(chunks.values, dtype=np.int64)
        before = np.concatenate([[0], up_to])[chunks.offsets[:-1]]
        last = up_to[later] - before[owner[later]] - 1  # of each chunk but the first: the place of its last token
        tokens, owner = chunks.values[later], owner[later]

        def kept(which: Mask) -> Indices:
            sums = (np.bincount(owner[which], weights, len(ids)) for weights in (tokens[which], None))
            return np.column_stack(list(sums)).astype(np.int64)[named]

        own_end = lengths.copy()
        if ends:
            own_end[named] = [ends.get(name, end) for name, end in zip(prompt_ids, lengths[named], strict=True)]
        return cls(
            prompt_ids=prompt_ids,
            lengths=lengths[named],
            flagged=frame.repetition.num_looping[named],
            all=kept(last >= 0),
            unflagged=kept(~looping[ids.offsets[owner] + last]),
            before_eos=kept(last < own_end[owner]),
            num_ended=int((own_end < lengths).sum()),
        )


def _calm_acceptance(series: Series, calm: Mask) -> Figure:
    """Acceptance length over some of the prompts. `calm`: shape (prompts of the series,)."""
    accepted, steps = series.clusters("num_accepted", "num_steps")
    return stats.ratio(accepted[calm], steps[calm], offset=1.0)


def _calm_speed(series: Series, calm: Mask) -> Figure:
    speeds = percentiles.of_requests(series, "decode_speed")
    return percentiles.median([block.where(calm[block.prompts]) for block in speeds])
