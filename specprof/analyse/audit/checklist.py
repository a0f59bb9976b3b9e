"""The reader's checklist of seed 000, chapter 5: "somebody shows me a concurrency number, what do I ask first?"

Its four questions, the third (content and speculation) answered in two lines.
"""

from __future__ import annotations

from specprof.analyse.audit.claim import Aggregation, Claim
from specprof.analyse.audit.findings import Answer, Finding, Kind, Rebuilt, Status
from specprof.analyse.audit.rebuild import PREFILL
from specprof.analyse.audit.runs import AGREEMENT, FILLER_WORDS
from specprof.analyse.audit.wording import figure, share, speed, times, tokens
from specprof.analyse.thresholds import MAX_PREFILL_SHARE, MIN_NATURAL_TOKENS, TOO_GOOD
from specprof.records import Stop

_ABOUT_SPECULATION = ("speculation inactive", "acceptance", "survival", "speed-up", TOO_GOOD, "step interval")


def checklist(claim: Claim, rebuilt: Rebuilt, findings: tuple[Finding, ...]) -> tuple[Answer, ...]:
    """Every question with its answer, in the seed's order."""
    return (
        _stop(claim, rebuilt),
        _prompt(claim, rebuilt),
        _content(claim),
        _speculation(claim, rebuilt, findings),
        _aggregation(claim, rebuilt),
    )


def _stop(claim: Claim, rebuilt: Rebuilt) -> Answer:
    question = "Is the output forced to a length, or does it stop by itself?"
    mean = rebuilt.mean_output_tokens
    length = f", about {tokens(mean)} tokens a request" if mean is not None else ""
    if claim.stop is None:
        if _one_length(claim, rebuilt):
            longest = figure(claim.longest_output_tokens or 0)
            told = f"not said, but every output has {longest} tokens: forced, or cut there"
            return Answer(question, Status.ANSWERED, told)
        if mean is not None and mean < MIN_NATURAL_TOKENS:
            told = f"not said{length}: short natural stops likely, so the number measures how long these answers are"
            return Answer(question, Status.SUSPICIOUS, told)
        return Answer(question, Status.NOT_STATED, f"not said{length}")
    if claim.stop is Stop.NATURAL and mean is not None and mean < MIN_NATURAL_TOKENS:
        return Answer(question, Status.SUSPICIOUS, f"natural{length}: it measures how long these answers are")
    if claim.stop is Stop.FORCED and claim.max_tokens and mean is not None and abs(mean / claim.max_tokens - 1) > 0.001:
        return Answer(question, Status.SUSPICIOUS, f"forced to {claim.max_tokens}{length}: not the length asked for")
    return Answer(question, Status.ANSWERED, f"{claim.stop}{length}")


def _one_length(claim: Claim, rebuilt: Rebuilt) -> bool:
    several = (rebuilt.num_requests or 0) > 1
    longest = claim.longest_output_tokens
    return several and longest is not None and claim.shortest_output_tokens == longest


def _prompt(claim: Claim, rebuilt: Rebuilt) -> Answer:
    question = "How long are the prompts?"
    if claim.prompt_tokens is None:
        return Answer(
            question, Status.NOT_STATED, "not said; prompt length alone can change the number several times over"
        )
    told = f"about {tokens(claim.prompt_tokens)} tokens"
    part = rebuilt.prefill_share
    if part is None:
        return Answer(question, Status.ANSWERED, f"{told}; which share of the wall was reading is not said")
    reading = "reading" if rebuilt.reading_from == PREFILL else "reading or waiting"
    told = f"{told}; {share(part)} of the wall was {reading}"
    return Answer(question, Status.SUSPICIOUS if part > MAX_PREFILL_SHARE else Status.ANSWERED, told)


def _content(claim: Claim) -> Answer:
    question = "What is the content?"
    if claim.content is None and claim.factorials:
        return Answer(question, Status.ANSWERED, ", ".join(dict.fromkeys(table.content for table in claim.factorials)))
    if claim.content is None:
        on = claim.speculation is None or claim.speculation.on
        why = "; with speculation on, a number without its content is probably the best-looking one" if on else ""
        return Answer(question, Status.NOT_STATED, f"not said{why}")
    filler = any(word in claim.content.lower() for word in FILLER_WORDS)
    return Answer(question, Status.SUSPICIOUS if filler else Status.ANSWERED, claim.content)


def _speculation(claim: Claim, rebuilt: Rebuilt, findings: tuple[Finding, ...]) -> Answer:
    question = "Is speculation on?"
    said = claim.speculation
    if said is None and claim.factorials:
        return Answer(question, Status.ANSWERED, "both: off and on, side by side")
    if said is None:
        return Answer(question, Status.NOT_STATED, "not said")
    if not said.on:
        return Answer(question, Status.ANSWERED, "off")
    parts = [f"on: {said.method}" if said.method else "on, method not said"]
    if said.draft_tokens:
        parts.append(f"K = {said.draft_tokens}")
    if rebuilt.acceptance_length is not None:
        parts.append(f"AL {figure(rebuilt.acceptance_length)}")
    if rebuilt.acceptance_rate is not None:
        parts.append(f"accepted / drafted {figure(rebuilt.acceptance_rate * 100)}%")
    contradicted = [f for f in findings if f.kind is Kind.IMPOSSIBLE and f.name.startswith(_ABOUT_SPECULATION)]
    if contradicted:
        parts.append(f"but {contradicted[0].evidence}")
    return Answer(question, Status.SUSPICIOUS if contradicted else Status.ANSWERED, ", ".join(parts))


def _aggregation(claim: Claim, rebuilt: Rebuilt) -> Answer:
    question = "How is the aggregate computed?"
    if claim.aggregation is Aggregation.SUM_OF_RATES:
        return Answer(
            question, Status.SUSPICIOUS, "per-request speeds added up; only total output / wall is an aggregate"
        )
    printed, total, wall_s = claim.throughput_tok_s, claim.output_tokens, claim.wall_s
    if total is not None and wall_s is not None:
        made = total / wall_s
        told = f"total output / wall = {figure(total)} / {wall_s:g} s = {speed(made)}"
        if printed is not None and abs(printed / made - 1) > AGREEMENT:
            return Answer(question, Status.SUSPICIOUS, f"{told}, but {speed(printed)} is printed")
        return Answer(question, Status.ANSWERED, told)
    added = _added_up(claim, rebuilt)
    if printed is not None and added is not None and abs(printed / added - 1) <= AGREEMENT / 2:
        told = f"{speed(printed)} is N times a request's own speed: probably rates added up, not total / wall"
        return Answer(question, Status.SUSPICIOUS, told)
    if claim.aggregation is not None:
        return Answer(question, Status.ANSWERED, f"{claim.aggregation}, but the parts are not given")
    inflation = f" (per-request speeds add up to {times(rebuilt.rate_inflation)})" if rebuilt.rate_inflation else ""
    return Answer(question, Status.NOT_STATED, f"not said{inflation}")


def _added_up(claim: Claim, rebuilt: Rebuilt) -> float | None:
    """The sum of rates this number might be: as stated, else N times a request's decode speed."""
    if claim.sum_of_rates_tok_s is not None:
        return claim.sum_of_rates_tok_s
    each, n = rebuilt.decode_speed_tok_s, rebuilt.num_streams
    return each * n if each is not None and n is not None and n > 1 else None
