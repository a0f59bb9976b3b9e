"""What an audit says: findings as values, each with its evidence and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specprof.analyse.audit.claim import Claim


class Kind(StrEnum):
    """What a finding is about; the order is the order of telling."""

    REBUILT = "rebuilt"  # recomputed from what was stated
    IMPOSSIBLE = "impossible"  # cannot be true, or not together with the rest of the claim
    CAUTION = "caution"  # true, but not what it looks like
    UNSTATED = "unstated"  # not said, and the number means little without it
    COMPARISON = "comparison"  # what may be held against what


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the audit found: the evidence in a sentence, and what to write (or measure) instead.

    `gate` is the gate of METHOD 7 that a measured cell would have failed for the same reason.
    """

    kind: Kind
    name: str
    evidence: str
    instead: str = ""
    gate: int | None = None


class Status(StrEnum):
    """How a claim fares before one of the reader's questions."""

    ANSWERED = "answered"
    NOT_STATED = "not stated"
    SUSPICIOUS = "suspicious"


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of the reader's checklist [seed 000, chapter 5] and what the claim says to it."""

    question: str
    status: Status
    answer: str


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What follows from the stated numbers, METHOD 3. Seconds, tokens, tok/s and shares; None where too little is said.

    `num_streams` is how many requests can have been in flight at once; `reading_s` the time until writing could begin,
    from prompt lengths and prefill speed or else from TTFT (`reading_from`); `predicted_wall_s` an upper bound, since
    later prompts may be read while earlier requests write.
    """

    num_streams: int | None = None
    num_requests: int | None = None
    output_tokens: float | None = None
    mean_output_tokens: float | None = None
    wall_s: float | None = None
    throughput_tok_s: float | None = None
    decode_speed_tok_s: float | None = None
    reading_s: float | None = None
    reading_from: str = ""
    prefill_share: float | None = None
    writing_s: float | None = None
    predicted_wall_s: float | None = None
    predicted_throughput_tok_s: float | None = None
    prediction_error: float | None = None  # predicted throughput / measured - 1
    effective_concurrency: float | None = None
    rate_inflation: float | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """A claim, what can be rebuilt from it, every finding, and the reader's checklist."""

    claim: Claim
    rebuilt: Rebuilt
    findings: tuple[Finding, ...]
    checklist: tuple[Answer, ...]

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind is kind)

    @property
    def objections(self) -> tuple[Finding, ...]:
        """What the auditor does not let pass: impossible values, and cautions."""
        return self.of(Kind.IMPOSSIBLE) + self.of(Kind.CAUTION)
