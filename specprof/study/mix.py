"""Mixed traffic: several contents share one batch, each against itself alone.

    protocols:
      forced: {stop: forced, output_tokens: 80}
      mixed: {stop: forced, output_tokens: 80, mix: [code, zh-prose]}

Streams are bound to contents: of N streams every content has N / (number of contents), for as long as the cell is
measured. Had the streams one common list of alternating prompts instead, the batch would fill up with whatever content
is slowest to write, and by another share in every arm: on and off would then differ by their mix as well. So a content
that has run out of prompts sends them again (`Phase.FILL`, in no figure) until the others have been measured too, and
every measured token was written in a batch of the mix that was asked for.

What a content is slowed *from* is a protocol of the study with the same stop rule, length and sampling that measures
it alone at the same N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specprof.study.config import Protocol, Study

SAME_WRITING = ("stop", "length", "mask_eos", "guided")  # of the mix and of what it is compared with


@dataclass(frozen=True, slots=True)
class MixedStreams:
    """At how many streams a mix is measured, and why not at the others."""

    measured: tuple[int, ...]
    notes: tuple[str, ...]


def mixed_tag(mix: Sequence[str]) -> str:
    """What a mixed cell is called: `code+zh-prose`."""
    return "+".join(mix)


def mixed_streams(study: Study, name: str) -> MixedStreams:
    """Sort the N of a mixed protocol by whether its contents can be compared with themselves alone there."""
    protocol = study.protocols[name]
    reasons = {n: _why_not(study, name, n) for n in protocol.concurrency or study.concurrency}
    notes = tuple(f"protocols.{name}: N = {n} is not measured: {why}." for n, why in reasons.items() if why)
    return MixedStreams(tuple(n for n, why in reasons.items() if not why), notes)


def require_sound_mixes(study: Study) -> None:
    """Raise ValueError for a mix that could answer nothing: no N fits, or one that was asked for by name does not."""
    tags = [workload.tag for workload in study.workloads]
    for name, protocol in study.protocols.items():
        if protocol.mix is None:
            continue
        if mixed_tag(protocol.mix) in tags:
            raise ValueError(
                f"workloads: tag {mixed_tag(protocol.mix)!r} is what protocols.{name} calls its mix; rename"
            )
        streams = mixed_streams(study, name)
        if streams.notes and (protocol.concurrency or not streams.measured):
            raise ValueError(streams.notes[0].removesuffix("."))


def _why_not(study: Study, name: str, concurrency: int) -> str:
    """Why a mix cannot be measured at N streams; empty where it can."""
    protocol = study.protocols[name]
    mix = protocol.mix or ()
    if concurrency % len(mix):
        return f"{len(mix)} contents share the streams evenly; use a multiple of {len(mix)}"
    for tag in mix:
        alone = [p for p in _alone(study, name, tag) if concurrency in (p.concurrency or study.concurrency)]
        if not alone:
            return (
                f"{tag} is not measured alone there; add a protocol that does, with the same stop, length and sampling"
            )
        if max(_num_prompts(study, tag, p) for p in alone) < concurrency:
            return f"{tag} alone would not fill {concurrency} streams; raise prompts: to {concurrency} at least"
    return ""


def _alone(study: Study, name: str, tag: str) -> Iterator[Protocol]:
    """The protocols that measure a content by itself just as the mix does."""
    mixed = study.protocols[name]
    for other, protocol in study.protocols.items():
        measures = protocol.mix is None and (protocol.workloads is None or tag in protocol.workloads)
        same_sampling = study.sampling_of(other) == study.sampling_of(name)
        if measures and same_sampling and all(getattr(protocol, key) == getattr(mixed, key) for key in SAME_WRITING):
            yield protocol


def _num_prompts(study: Study, tag: str, protocol: Protocol) -> int:
    (workload,) = (w for w in study.workloads if w.tag == tag)
    limits = (study.prompts, protocol.prompts, None if workload.ids is None else len(workload.ids))
    return min(limit for limit in limits if limit is not None)
