"""What a claim does not say, and which comparison would be fair once it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specprof.analyse.audit.claim import Claim
from specprof.analyse.audit.findings import Finding, Kind, Rebuilt
from specprof.analyse.thresholds import MAX_PREFILL_SHARE, MIN_NATURAL_TOKENS
from specprof.records import Stop


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that a number needs: what stays unknown without it, what to state, and when it is not there."""

    name: str
    unknown: str
    instead: str
    is_absent: Callable[[Claim, Rebuilt], bool]


_PARTS = (  # most damaging first
    _Part(
        "concurrency",
        "how many requests were in flight",
        "State N, and the server's cap.",
        lambda claim, _: claim.concurrency is None,
    ),
    _Part(
        "wall",
        "how long it took",
        "State the wall from first request sent to last done.",
        lambda _, rebuilt: rebuilt.wall_s is None,
    ),
    _Part(
        "output length",
        "how much was written",
        "State total and median output tokens.",
        lambda _, rebuilt: rebuilt.mean_output_tokens is None,
    ),
    _Part(
        "prompt length",
        "how much had to be read",
        "State the median prompt length in tokens.",
        lambda claim, _: claim.prompt_tokens is None,
    ),
    _Part(
        "stop rule",
        "whether outputs were forced to a length or stopped by themselves",
        "State it.",
        lambda claim, _: claim.stop is None,
    ),
    _Part(
        "content",
        "what was written",
        "Name the kind of text; give code and prose separately.",
        lambda claim, _: claim.content is None,
    ),
    _Part(
        "speculation",
        "whether it was on",
        "State off, or method and K; give both arms.",
        lambda claim, _: claim.speculation is None,
    ),
    _Part(
        "method",
        "how drafts were made",
        "Name the method.",
        lambda claim, _: claim.speculation is not None and claim.speculation.on and claim.speculation.method is None,
    ),
    _Part(
        "draft length",
        "K, which acceptance depends on",
        "State K.",
        lambda claim, _: (
            claim.speculation is not None and claim.speculation.on and claim.speculation.draft_tokens is None
        ),
    ),
    _Part(
        "acceptance",
        "how many guesses held",
        "Print steps, drafted and accepted tokens, and the survival of each position.",
        lambda claim, rebuilt: (
            claim.speculation is not None
            and claim.speculation.on
            and rebuilt.acceptance_length is None
            and rebuilt.acceptance_rate is None
        ),
    ),
    _Part(
        "aggregation",
        "how the requests became one number",
        "Write total output / wall.",
        lambda claim, _: claim.aggregation is None and (claim.output_tokens is None or claim.wall_s is None),
    ),
    _Part(
        "prefill",
        "how fast prompts are read, or the TTFT",
        "Measure the prefill speed with as many prompts of this length at once.",
        lambda _, rebuilt: rebuilt.reading_s is None,
    ),
    _Part(
        "prefix cache",
        "whether prompts came from a cache",
        "Switch it off and verify that no token was cached, or print the hit rate.",
        lambda claim, _: claim.prefix_cache is None and claim.cached_tokens is None,
    ),
    _Part(
        "server cap",
        "how many requests the server admits at once",
        "State max_num_seqs.",
        lambda claim, _: claim.cap is None,
    ),
    _Part(
        "temperature",
        "how tokens were drawn",
        "State temperature and top-p.",
        lambda claim, _: claim.temperature is None,
    ),
    _Part(
        "repeats",
        "how far a second run would be",
        "Give an interval.",
        lambda claim, _: claim.repeats is None and claim.noise is None,
    ),
    _Part(
        "engine and model",
        "what ran",
        "Name engine, version and model.",
        lambda claim, _: claim.engine is None or claim.model is None,
    ),
)


def unstated_findings(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """Everything the number needs and does not come with, most damaging first."""
    if not _is_run(claim):
        return
    for part in _PARTS:
        if part.is_absent(claim, rebuilt):
            yield Finding(Kind.UNSTATED, part.name, part.unknown, part.instead)


def fair_comparison(claim: Claim, rebuilt: Rebuilt) -> Iterator[Finding]:
    """What this number may be held against, and which measurement would make it more."""
    if not _is_run(claim):
        return
    yield Finding(
        Kind.COMPARISON,
        "like with like",
        "may be held against a number with the same prompts, lengths, stop rule, N, sampling and aggregation",
        _conditions(claim),
    )
    share, mean = rebuilt.prefill_share or 0.0, rebuilt.mean_output_tokens or 0.0
    about_decode = claim.stop is Stop.FORCED and share <= MAX_PREFILL_SHARE and mean >= MIN_NATURAL_TOKENS
    if not about_decode:
        yield Finding(
            Kind.COMPARISON,
            "decode figure",
            "says how soon these requests were done, not how fast the machine writes",
            f"Run the same prompts, shortened, forced to one length of {MIN_NATURAL_TOKENS} or more tokens, at the "
            "same N: that ceiling is what other machines' decode figures compare with.",
        )
    if claim.speculation is None or claim.speculation.on:
        yield Finding(
            Kind.COMPARISON,
            "speculation gain",
            "one arm alone does not say what speculation gave" if claim.speculation else "the arm is not known",
            "Run the same prompts with speculation off and on, at this N and at N = 1, code and prose apart.",
        )


def _conditions(claim: Claim) -> str:
    told = {
        "N": claim.concurrency,
        "prompt": claim.prompt_tokens,
        "stop": claim.stop,
        "content": claim.content,
        "temperature": claim.temperature,
    }
    known = ", ".join(f"{name} {_plain(value)}" for name, value in told.items() if value is not None)
    unknown = ", ".join(name for name, value in told.items() if value is None)
    return f"Known: {known or 'nothing'}." + (f" Unknown, so not comparable yet: {unknown}." if unknown else "")


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_run(claim: Claim) -> bool:
    """Whether the claim is about a run at all, rather than only a table, a factorial or a verdict."""
    numbers = (claim.concurrency, claim.wall_s, claim.throughput_tok_s, claim.output_tokens, claim.decode_speed_tok_s)
    return any(number is not None for number in numbers) or not (claim.factorials or claim.lines or claim.draft_lengths)
