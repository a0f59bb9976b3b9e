"""Gates 7, 10 and 14: texts that loop, have the wrong length, or come from prompts that are no natural text."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import caution, invalid
from specprof.analyse.results import Figure, GateFinding, Loops
from specprof.analyse.thresholds import MAX_LOOP_EFFECT
from specprof.records import Cell, Stop
from specprof.study.loops import MIN_TOKENS

MIN_PROMPTS_OF_ONE_LENGTH = 8  # fewer natural prompts may well have the same number of tokens
MIN_PROMPTS_TO_COMPARE = 4
BEYOND_CHANCE = 1.7  # half-widths of a 95% interval that make one of 99.9%: a study asks this of every cell


def failures(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: requests that failed are not silently left out."""
    failed = frame.failures
    if not failed:
        return
    total = len(failed) + len(frame.requests)
    yield invalid(
        10,
        "failed requests",
        f"{len(failed)} of {total} failed: {failed[0]}",
        "Mend that, remove the cell's folder under cells/, and run again: it is then measured anew.",
    )


def lengths(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: forced texts have the length asked for, and nobody was preempted."""
    cell, requests = frame.cell, frame.requests
    if cell.stop is Stop.FORCED:
        short = int((requests.output_tokens != cell.max_tokens).sum())
        if short:
            yield invalid(
                10,
                "length",
                f"{short} of {len(requests)} texts are not the {cell.max_tokens} tokens asked for",
                "Raise max_model_len, or ask for fewer tokens.",
            )
    else:
        cut = int(((requests.finish_reason == "length") & (requests.output_tokens < cell.max_tokens)).sum())
        if cut:
            yield invalid(
                10,
                "length",
                f"{cut} of {len(requests)} texts were cut short of the {cell.max_tokens} tokens allowed",
                "Raise max_model_len, or allow fewer tokens.",
            )
    yield from _beyond_the_drafter(frame)
    yield from _preempted(frame)


def _beyond_the_drafter(frame: CellFrame) -> Iterator[GateFinding]:
    """A drafter with a shorter context than the target stops drafting in mid-text, and no counter says so."""
    limit = (frame.cell.speculative_config or {}).get("max_model_len")
    longest = int((frame.requests.prompt_tokens + frame.requests.output_tokens).max())
    if limit and longest > int(limit):
        yield invalid(
            10,
            "drafter length",
            f"the drafter ends at {int(limit)} tokens of context, texts reached {longest}",
            "Raise max_model_len in the speculative config to the target's, or measure shorter texts.",
        )


def _preempted(frame: CellFrame) -> Iterator[GateFinding]:
    before, after = frame.data.before, frame.data.after
    if before and after and before.num_preemptions is not None and after.num_preemptions is not None:
        preempted = after.num_preemptions - before.num_preemptions
        if preempted:
            yield caution(
                10, "preemptions", f"{preempted:.0f} requests were preempted", "Give the KV cache more memory."
            )


def looping(cell: Cell, num_prompts: int, loops: Loops | None) -> Iterator[GateFinding]:
    """Gate 7: acceptance on repeated text, or past a text's own end, says nothing about the content.

    `num_prompts`: different prompts behind `loops`.
    """
    if loops is None:
        return
    whole = loops.tokens_per_engine_step_all
    kept = {
        "without looping windows": loops.tokens_per_engine_step_unflagged,
        "before the text's own end": loops.tokens_per_engine_step_before_eos,
    }
    drafts = bool(cell.speculative_config)  # without, a step is one token whatever the text
    effects = {name: _effect(whole, part, loops) for name, part in kept.items() if part.value and drafts}
    nothing_left = drafts and loops.share_of_tokens_flagged >= 1.0
    name, effect = max(effects.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    flagged = f"the texts of {len(loops.prompt_ids)} of {num_prompts} prompts repeat themselves"
    if not loops.num_requests_flagged:
        flagged = "no text repeats itself, but writing on past its own end changes how well it is guessed"
    if abs(effect) > MAX_LOOP_EFFECT or nothing_left:
        shown = (
            f"tokens per step {whole.value:.2f}, {kept[name].value:.2f} {name}"
            if name
            else "no token is left without them"
        )
        yield invalid(
            7,
            "loops",
            f"{flagged}; {shown}",
            "Use the figure of the unflagged tokens, a repetition penalty (equal in all arms) or shorter outputs.",
        )
    elif loops.num_requests_flagged:
        yield caution(
            7,
            "loops",
            f"{flagged} (tokens per step change by {effect:+.1%})",
            "Read the figure of the unflagged tokens.",
        )


def _effect(whole: Figure, kept: Figure, loops: Loops) -> float:
    """By how much the figure of the whole exceeds that of the part kept; 0 where chance explains it.

    Repetition that was seen gets no such excuse. But a text cut at its own end, with nothing repeated, leaves a
    smaller sample of the same steps, and a smaller sample wanders: its extra variance is what the two variances differ
    by, since the part is contained in the whole.
    """
    assert kept.value is not None  # noqa: S101 - the caller asks only where something was kept
    effect = (whole.value or 1.0) / kept.value - 1
    if loops.num_requests_flagged:
        return effect
    extra = _log_half_width(kept) ** 2 - _log_half_width(whole) ** 2
    return effect if abs(log(1 + effect)) > BEYOND_CHANCE * max(extra, 0.0) ** 0.5 else 0.0


def _log_half_width(figure: Figure) -> float:
    return log(figure.high / figure.low) / 2 if figure.low and figure.high else 0.0


def filler(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 14, as far as records tell: prompts nobody wrote. Their texts are linted by `study.prompts`.

    Copies of one prompt are answered alike, and are one prompt however often they are sent. Generated prompts (random
    tokens, filler) are cut to one length, which natural ones never have by themselves.
    """
    prompts, texts = frame.last_of_prompts, frame.lists("token_ids")
    long_enough = [texts[row].tobytes() for row in prompts[texts.lengths[prompts] >= MIN_TOKENS]]
    different = len(set(long_enough))
    if len(long_enough) >= MIN_PROMPTS_TO_COMPARE and 2 * different <= len(long_enough):
        yield invalid(
            14,
            "copied prompts",
            f"{len(long_enough)} prompts were answered with {different} different text{'s' if different > 1 else ''}",
            "Use natural prompts, each its own; 'specprof prompts check' names the near-copies.",
        )
    lengths_seen = set(frame.requests.prompt_tokens[prompts].tolist())
    if len(prompts) >= MIN_PROMPTS_OF_ONE_LENGTH and len(lengths_seen) == 1 and lengths_seen != {0}:  # 0: not counted
        yield caution(
            14,
            "prompts of one length",
            f"all {len(prompts)} prompts have exactly {int(lengths_seen.pop())} tokens, as random or filler ones do",
            "Use natural text: acceptance on random or filler prompts says nothing about a workload.",
        )
