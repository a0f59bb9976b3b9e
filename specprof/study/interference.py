"""Interference: steady decoders, and one long prompt that arrives among them (METHOD 2).

    interference:
      suite: prompts/long_code.jsonl      # the newcomers: long prompts
      ids: [long-code-003]                # one cell each; default: the longest that fits
      workload: code                      # what the decoders write
      decoders: [4]                       # how many steady streams
      output_tokens: 160                  # of each decoder (forced)
      after_tokens: 16                    # the newcomer comes once every decoder has written so many
      max_num_batched_tokens: [2048, 128] # per engine launch: at least the prompt = read whole, less = in chunks

A prompt and the decoders' next tokens share an engine step. What fits into `max_num_batched_tokens` beside the decoders
is read in that one step, and every decoder waits for it; what does not is read in chunks, a step each, which makes many
steps longer instead of one. Each size is an engine argument, so it takes a launch of its own per arm and block; these
launches hold nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from specprof.errors import InputError
from specprof.records import Prompt, draft_length
from specprof.study.engines import VllmEngine
from specprof.study.strict import Count, Strict

if TYPE_CHECKING:
    from specprof.study.config import Study

INTERFERENCE = "interference"  # the protocol name of these cells
NEWCOMER_TOKENS = 8  # enough to see it write, too few to outlive anybody
BYTES_PER_TOKEN = 2  # fewer than a tokenizer of today makes of code or prose: what fits by this rule fits


class InterferenceSpec(Strict):
    """The section of a study file. Every combination of newcomer and decoders is a cell, on every launch."""

    suite: Path
    ids: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    workload: str
    decoders: Annotated[tuple[Count, ...], Field(min_length=1)] = (4,)
    output_tokens: Count = 160
    after_tokens: Count = 16
    max_num_batched_tokens: Annotated[tuple[Count, ...], Field(min_length=1)] = (2048, 128)

    @field_validator("ids", "decoders", "max_num_batched_tokens")
    @classmethod
    def _each_once(cls, given: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        for item in given or ():
            if (given or ()).count(item) > 1:
                raise ValueError(f"{item!r} stands twice; once is enough")
        return given

    @model_validator(mode="after")
    def _decoders_outlive_their_start(self) -> InterferenceSpec:
        if self.output_tokens <= self.after_tokens:
            raise ValueError(
                f"output_tokens: {self.output_tokens} must exceed after_tokens: {self.after_tokens}; the decoders are "
                "to be writing when the newcomer comes, and until it has been read"
            )
        return self


@dataclass(frozen=True, slots=True)
class Encounter:
    """Who meets whom in one cell: a newcomer, and the decoders it comes among."""

    newcomer: Prompt
    decoders: tuple[Prompt, ...]


def require_sound_interference(study: Study) -> None:
    """What the section says must agree with the rest of the study. Raises ValueError naming the key."""
    spec = study.interference
    if spec is None:
        return
    tags = [workload.tag for workload in study.workloads]
    if spec.workload not in tags:
        raise ValueError(f"interference.workload: {spec.workload!r} is not in this study; it has {', '.join(tags)}")
    _require_room(spec, _engine_arg(study, "max_num_seqs"))
    for name, arm in study.arms.items():
        written = spec.after_tokens * (draft_length(arm.speculative_config) + 1)
        if spec.output_tokens <= written:
            raise ValueError(
                f"interference.output_tokens: {spec.output_tokens} may all be written before the newcomer comes: the "
                f"{spec.after_tokens} steps of after_tokens write up to {written} tokens in arm {name!r}; raise "
                "output_tokens, or lower after_tokens"
            )


def _require_room(spec: InterferenceSpec, max_num_seqs: int | None) -> None:
    """The engine must start with every size, and let everybody in at once."""
    if max_num_seqs is None:
        return
    if min(spec.max_num_batched_tokens) < max_num_seqs:
        raise ValueError(
            f"interference.max_num_batched_tokens: {min(spec.max_num_batched_tokens)} is less than max_num_seqs "
            f"{max_num_seqs}, with which vLLM does not start; raise it, or lower engine.args.max_num_seqs"
        )
    if max(spec.decoders) >= max_num_seqs:
        raise ValueError(
            f"interference.decoders: {max(spec.decoders)} and a newcomer are more than max_num_seqs {max_num_seqs} "
            "lets in at once; lower it, or raise engine.args.max_num_seqs"
        )


def newcomers(study: Study, suite: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The long prompts of the section's `suite`: those named, else the longest that fits into max_model_len.

    Raises InputError where there is none.
    """
    spec = study.interference
    if spec is None:
        return ()
    by_id = {prompt.id: prompt for prompt in suite}
    if spec.ids is not None:
        if absent := [name for name in spec.ids if name not in by_id]:
            raise InputError(f"interference: ids: '{absent[0]}' is not in {spec.suite}. Name an id that is.")
        return tuple(by_id[name] for name in spec.ids)
    room = _engine_arg(study, "max_model_len")
    fitting = [p for p in suite if room is None or _num_bytes(p, study) <= (room - NEWCOMER_TOKENS) * BYTES_PER_TOKEN]
    if not fitting:
        raise InputError(
            f"interference: no prompt of {spec.suite} surely fits into max_model_len {room}. Name one under ids:, or "
            "raise engine.args.max_model_len."
        )
    return (max(fitting, key=lambda prompt: _num_bytes(prompt, study)),)


def encounters(study: Study, arrivals: Sequence[Prompt], prompts: Sequence[Prompt], block: int) -> list[Encounter]:
    """Every newcomer among every number of decoders, in an order drawn for the block: the same on all its launches.

    `prompts`: the workload's, of which a newcomer is never one. Raises InputError where they are too few.
    """
    spec = study.interference
    if spec is None:
        return []
    coming = {prompt.id for prompt in arrivals}
    steady = [prompt for prompt in prompts if prompt.id not in coming]
    if len(steady) < max(spec.decoders):
        raise InputError(
            f"interference: decoders: {max(spec.decoders)} streams need as many prompts of '{spec.workload}', and "
            f"there are {len(steady)}. Raise 'prompts:', or lower decoders:."
        )
    rng = Random(f"{study.seed}/{block}/{INTERFERENCE}")
    rng.shuffle(steady)
    met = [Encounter(newcomer, tuple(steady[:count])) for newcomer in arrivals for count in spec.decoders]
    rng.shuffle(met)
    return met


def batch_sizes(study: Study, block: int) -> list[int]:
    """Every max_num_batched_tokens, in an order drawn for the block; none without the section."""
    spec = study.interference
    if spec is None:
        return []
    sizes = list(spec.max_num_batched_tokens)
    Random(f"{study.seed}/{block}/max_num_batched_tokens").shuffle(sizes)
    return sizes


def notes(study: Study, arrivals: Sequence[Prompt]) -> Iterator[str]:
    """What a plan should say of it, since its launches come on top of the grid's."""
    spec = study.interference
    if spec is not None:
        yield (
            f"interference: {_listed(spec.decoders)} decoders ({spec.workload}) are to write {spec.output_tokens} "
            f"tokens each when {_listed(prompt.id for prompt in arrivals)} arrives; one more launch per arm and block "
            f"for each max_num_batched_tokens: {_listed(spec.max_num_batched_tokens)}."
        )


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _num_bytes(prompt: Prompt, study: Study) -> int:
    """Bytes of UTF-8 that are sent: a Chinese character counts three, and may well be more than one token."""
    sent = [message["content"] for message in prompt.messages] if study.format == "chat" else [prompt.text]
    return sum(len(text.encode()) for text in sent)


def _engine_arg(study: Study, name: str) -> int | None:
    """A whole number among the engine's arguments, whichever way its key is spelt; None if the study leaves it out."""
    return study.engine.count(name) if isinstance(study.engine, VllmEngine) else None
