"""Every bound METHOD 9 knows for one model on one machine, as figures that tables and JSON read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specprof.analyse import roofline
from specprof.analyse.roofline import Hardware, ModelShape
from specprof.errors import InputError


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: streams at a context, K drafted tokens, a TPOT target, and a prompt read whole and in chunks.

    InputError, with the option's name, for what is no count or no time.
    """

    concurrency: tuple[int, ...] = (1, 8, 27, 58)
    context: int = 4096
    draft_tokens: int = 3
    tpot_target_s: float = 0.020
    prompt_tokens: int = 32_768
    chunk_tokens: int = 512

    def __post_init__(self) -> None:
        counts = {
            "--context": self.context,
            "--draft-tokens": self.draft_tokens,
            "--prompt": self.prompt_tokens,
            "--chunk": self.chunk_tokens,
            "--concurrency": min(self.concurrency, default=0),
        }
        for option, value in counts.items():
            if value < 1:
                raise InputError(f"{option} {value}: must be 1 or more.")
        if not 0 < self.tpot_target_s < float("inf"):
            raise InputError(f"--tpot-target {self.tpot_target_s:g}: is no time. Write seconds, e.g. 0.02 for 20 ms.")


@dataclass(frozen=True, slots=True)
class StepBound:
    """A step of so many streams: plain, and with K drafted tokens of each to verify.

    `tpot_s` is the longer of `reading_s` and `arithmetic_s`. `verification_cost` = verification / plain step: the
    tokens per step a draft must bring to gain anything, its own time not counted.
    """

    concurrency: int
    tpot_s: float
    throughput_tok_s: float
    reading_s: float
    arithmetic_s: float
    verification_s: float
    verification_cost: float
    fits: bool


@dataclass(frozen=True, slots=True)
class PrefillBound:
    """A prompt read whole, and in chunks beside `decoding` streams, which wait for the longest step of it."""

    prompt_tokens: int
    whole_s: float
    chunk_tokens: int
    decoding: int
    longest_step_s: float
    chunked_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no engine can beat with this model on this machine."""

    model: str
    machine: Hardware
    shape: ModelShape
    question: Question
    steps: tuple[StepBound, ...]
    concurrency_within_target: int
    capacity: int
    prefill: PrefillBound
    ridge_tokens: float  # N·(K+1)
    notes: tuple[str, ...]


def counts_of(option: str, text: str) -> tuple[int, ...]:
    """The counts of `1,8,27`, or with spaces. InputError, with the option's name, for anything else."""
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise InputError(f"{option} {text}: is no list of counts. Write for example {option} 1,8,27,58.") from None


def bounds(model: str, shape: ModelShape, machine: Hardware, question: Question, notes: Sequence[str] = ()) -> Bounds:
    """Answer a question for a model and a machine. `notes`: what a reader must know of either."""
    room = roofline.capacity(shape, machine, question.context)
    return Bounds(
        model=model,
        machine=machine,
        shape=shape,
        question=question,
        steps=tuple(_step(shape, machine, streams, question, room) for streams in question.concurrency),
        concurrency_within_target=roofline.largest_concurrency(
            shape, machine, question.context, question.tpot_target_s
        ),
        capacity=room,
        prefill=_prefill(shape, machine, question, room),
        ridge_tokens=roofline.ridge_tokens(shape, machine),
        notes=tuple(notes),
    )


def _step(shape: ModelShape, machine: Hardware, streams: int, question: Question, room: int) -> StepBound:
    plain = roofline.tpot_s(shape, machine, streams, question.context)
    verification = roofline.verification_step_s(shape, machine, streams, question.draft_tokens, question.context)
    return StepBound(
        concurrency=streams,
        tpot_s=plain,
        throughput_tok_s=roofline.throughput_tok_s(shape, machine, streams, question.context),
        reading_s=roofline.reading_s(shape, machine, streams, 0, question.context),
        arithmetic_s=roofline.arithmetic_s(shape, machine, streams, 0, question.context),
        verification_s=verification,
        verification_cost=verification / plain,
        fits=streams <= room,
    )


def _prefill(shape: ModelShape, machine: Hardware, question: Question, room: int) -> PrefillBound:
    """The newcomer takes one place of the largest batch asked for that fits; the others decode meanwhile."""
    decoding = max(min(max(question.concurrency), room) - 1, 0)
    prompt, chunk = question.prompt_tokens, question.chunk_tokens
    steps = list(roofline.chunk_steps_s(shape, machine, prompt, chunk, decoding, question.context))
    return PrefillBound(
        prompt_tokens=prompt,
        whole_s=roofline.prefill_s(shape, machine, prompt),
        chunk_tokens=chunk,
        decoding=decoding,
        longest_step_s=max(steps),
        chunked_s=sum(steps),
    )
