"""A recorded trace → who arrives when in one cell: the trace's instants and lengths, the study's own texts.

A trace holds no texts, so every request takes a prompt of the study: of its content, near the recorded length, and
drawn among the `NEAREST` ones so that one prompt is not sent for ever. Lengths are compared by a rough count, a quarter
of the text's UTF-8 bytes: characters ÷ 4 in English, three quarters of a token for a Chinese character.

Where a trace names no contents, the contents of the protocol take turns: each once a round, the order of every round
drawn. All draws come from the study's seed. `warmup` and `duration` are seconds of the replay, `speed` is in them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from itertools import pairwise
from math import fsum
from statistics import median

from specprof.errors import InputError
from specprof.records import Arrivals, Prompt
from specprof.study.load import Trace
from specprof.study.trace import Recorded, Recording, read_trace

NEAREST = 4
BYTES_PER_TOKEN = 4
MAX_LENGTH_GAP = 0.2  # prompts this far from the recorded lengths are worth a note
_MICROSECONDS = 6  # decimals of an instant: no trace is finer, and no client sends more exactly


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace as one cell sends it: `prompts[i]` is due at `arrivals.due_s[i]`. `notes`: what differs from the file."""

    arrivals: Arrivals
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...]


def replay(load: Trace, prompts: Mapping[str, Sequence[Prompt]], seed: str, max_tokens: int, tail_s: float) -> Replay:
    """The arrivals of a trace. `prompts`: by content; `max_tokens`: the most a text of the protocol may have.

    What is due in the `tail_s` after the measured window is sent to keep the load up. Raises InputError for a trace
    that cannot be read, is too short for the window, or names a content that is not in `prompts`.
    """
    recording = read_trace(load.file, load.layout)
    duration = _window(load, recording)
    due, sent = _sent(load, recording, load.warmup + duration + tail_s)
    rng = random.Random(seed)
    near = _by_length(prompts)
    contents = _contents(sent, list(prompts), rng, recording)
    chosen = tuple(rng.choice(near(tag, one.prompt_tokens)) for tag, one in zip(contents, sent, strict=True))
    arrivals = Arrivals(
        kind="trace",
        rate_per_s=_num_measured(due, load.warmup, duration, recording) / duration,
        burstiness=_burstiness(due),
        warmup_s=load.warmup,
        duration_s=duration,
        timeout_s=load.timeout,
        due_s=due,
        max_concurrency=load.max_concurrency,
        output_tokens=tuple(min(n, max_tokens) for one in sent if (n := one.output_tokens) is not None),
    )
    return Replay(arrivals, chosen, tuple(_notes(recording, sent, chosen, max_tokens)))


def rough_tokens(prompt: Prompt) -> float:
    """About how many tokens a prompt has, whatever the tokenizer."""
    return len(prompt.text.encode()) / BYTES_PER_TOKEN


# -- when ------------------------------------------------------------------------------------------------------------


def _window(load: Trace, recording: Recording) -> float:
    """How long the measured window is, seconds of the replay.

    A whole trace lasts one mean gap longer than to its last request, which so belongs to the window as well.
    """
    num_gaps = len(recording.requests) - 1
    last_s = recording.requests[-1].at_s / load.speed
    if last_s == 0:
        raise InputError(f"{recording.file}: all its requests come at one instant. Give a trace that takes some time.")
    whole = last_s * (num_gaps + 1) / num_gaps
    left = whole - load.warmup
    at_speed = f"{recording.file} lasts {whole:.4g} s at speed {load.speed:g}"
    if left <= 0:
        raise InputError(f"load.warmup: {at_speed}, no longer than the warm-up of {load.warmup:g} s. Shorten it.")
    if load.duration is None:
        return left
    if load.duration > left:
        raise InputError(
            f"load.duration: {at_speed}, which leaves {left:.4g} s after a warm-up of {load.warmup:g} s. Ask for no "
            "more, or leave duration: out for all of it."
        )
    return load.duration


def _sent(load: Trace, recording: Recording, end_s: float) -> tuple[tuple[float, ...], tuple[Recorded, ...]]:
    """The requests that are due before the end, and when, seconds of the replay."""
    due = [round(one.at_s / load.speed, _MICROSECONDS) for one in recording.requests]
    kept = [(at, one) for at, one in zip(due, recording.requests, strict=True) if at < end_s]
    return tuple(at for at, _ in kept), tuple(one for _, one in kept)


def _num_measured(due: Sequence[float], warmup_s: float, duration_s: float, recording: Recording) -> int:
    count = sum(warmup_s <= at < warmup_s + duration_s for at in due)
    if not count:
        raise InputError(
            f"{recording.file}: no request comes in the {duration_s:g} s after a warm-up of {warmup_s:g} s. Ask for a "
            "longer load.duration, or another load.warmup."
        )
    return count


def _burstiness(due: Sequence[float]) -> float:
    """The Gamma shape whose gaps vary as much as these: 1 / (coefficient of variation)²; 1 where they do not vary."""
    gaps = [later - earlier for earlier, later in pairwise(due)]
    if not gaps:
        return 1.0
    mean = fsum(gaps) / len(gaps)
    variance = fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    return mean**2 / variance if variance else 1.0


# -- what ------------------------------------------------------------------------------------------------------------


def _contents(sent: Sequence[Recorded], tags: Sequence[str], rng: random.Random, recording: Recording) -> Iterator[str]:
    """The content of each request: the one recorded, or the contents in turn."""
    turn: list[str] = []
    for one in sent:
        if one.tag is None:
            turn = turn or rng.sample(tags, len(tags))
            yield turn.pop()
        elif one.tag in tags:
            yield one.tag
        else:
            raise InputError(
                f"{recording.file}:{one.line}: tag: {one.tag!r} is no workload of this protocol ({', '.join(tags)}). "
                "Name one of them, or add a workload of that tag."
            )


def _by_length(prompts: Mapping[str, Sequence[Prompt]]) -> Callable[[str, int | None], Sequence[Prompt]]:
    """Which prompts of a content are near a recorded length; all of them where none was recorded."""
    lengths = {tag: [(rough_tokens(prompt), prompt.id, prompt) for prompt in of] for tag, of in prompts.items()}

    @cache
    def near(tag: str, wanted: int | None) -> Sequence[Prompt]:
        if wanted is None:
            return prompts[tag]
        found = nsmallest(NEAREST, lengths[tag], key=lambda one: (abs(one[0] - wanted), one[1]))
        return [prompt for *_, prompt in found]

    return near


def _notes(recording: Recording, sent: Sequence[Recorded], chosen: Sequence[Prompt], max_tokens: int) -> Iterator[str]:
    """In what the replay differs from what was recorded."""
    if recording.num_failed:
        yield (
            f"{recording.file.name}: {recording.num_failed:,} of its requests had no output tokens: they failed when "
            "they were recorded, and are left out."
        )
    cut = sum(one.output_tokens > max_tokens for one in sent if one.output_tokens is not None)
    if cut:
        yield (
            f"{recording.file.name}: {cut:,} of {len(sent):,} recorded answers are longer than this protocol's "
            f"{max_tokens:,} tokens, and cut to that."
        )
    asked = [one.prompt_tokens for one in sent if one.prompt_tokens is not None]
    if not asked:
        return
    recorded, there = median(asked), median(rough_tokens(prompt) for prompt in chosen)
    if abs(there - recorded) > MAX_LENGTH_GAP * recorded:
        yield (
            f"{recording.file.name}: recorded prompts have {recorded:,.0f} tokens at the median, those sent in their "
            f"place about {there:,.0f}. Prompts of the recorded lengths would make reading take as long as it took."
        )
