"""What a report owes its reader about servers that were attached to: what they do not tell, and what nobody varied.

Where a server does not tell the acceptance of each request, its counters may still tell that of a whole cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.analyse.acceptance import acceptance_length, acceptance_rate
from specprof.analyse.evidence import Series
from specprof.analyse.results import AcceptanceCounts, Figure
from specprof.records import Counters

WITHOUT: Mapping[str, str] = {
    "token ids": (
        "How the tokens of a text were shared among its chunks is not known: TPOT is the mean gap "
        "between chunks divided by the mean number of tokens in one, texts are compared by their characters, and loops "
        "(gate 7) are not looked for."
    ),
    "token counts": (
        "A text that was cut at the length asked for holds that many tokens; prompts are of unknown length, so the "
        "share of reading is not modelled."
    ),
    "cached prompt tokens": "That no prompt came from a prefix cache is not verified (gate 5).",
    "queue times": "Waiting at the server is inside the time to first token.",
    "counters": "Foreign traffic cannot be seen, nor requests that waited or were preempted (gates 1, 9 and 10).",
    "acceptance": "What speculation gained is measured; how many of its guesses held is not known.",
    "acceptance of each request": "Acceptance is that of whole cells, from the server's counters, without an interval.",
}


@dataclass(frozen=True, slots=True)
class CountedAcceptance:
    """Acceptance of a series by the server's counters alone. Nothing in them shows how prompts differ: no intervals."""

    length: Figure
    rate: Figure
    counts: AcceptanceCounts


def counted_acceptance(series: Series) -> CountedAcceptance | None:
    """From the counters before and after each cell; None where they count no drafts."""
    if not series.cell.speculative_config:
        return None
    readings = [(frame.data.before, frame.data.after) for frame in series.frames]
    steps, drafted, accepted = (
        sum(_grown(before, after, name) for before, after in readings)
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    if not (steps and drafted):
        return None
    return CountedAcceptance(
        Figure(acceptance_length(accepted, steps)),
        Figure(acceptance_rate(accepted, drafted)),
        AcceptanceCounts(round(steps), round(drafted), round(accepted)),
    )


def _grown(before: Counters | None, after: Counters | None, name: str) -> float:
    if before is None or after is None:
        return 0.0
    return float((getattr(after, name) or 0.0) - (getattr(before, name) or 0.0))


def attached_notes(environment: Mapping[str, Any]) -> Iterator[str]:
    """What to say beside the figures of a study whose servers ran already; nothing of any other study."""
    launches = [facts for facts in environment.get("launches", {}).values() if facts.get("kind") == "attach"]
    if not launches:
        return
    yield (
        "The servers were attached to, not started: blocks switch between their addresses, and no interval holds the "
        "variation between starts of an engine."
    )
    for missing, arms in _by_arm(launches, "not_reported").items():
        yield f"{_capital(missing)}: not reported by {_servers(arms)}. {WITHOUT.get(missing, '')}".rstrip()
    for field, arms in _by_arm(launches, "fields_left_out").items():
        yield f"Requests went without {field}, which {_servers(arms)} refuses."
    keeping = sorted({str(facts["extra"].get("arm")) for facts in launches if _may_keep_prompts(facts["extra"])})
    if keeping and environment.get("cache") != "replay":
        yield (
            f"Nothing can empty the prefix cache of {_servers(keeping)} before a cell; only cached prompt tokens would "
            "tell (gate 5)."
        )


def _may_keep_prompts(extra: Mapping[str, Any]) -> bool:
    """Whether a server may answer from prompts it has read before: its cache is not known to be off, nor emptied."""
    return extra.get("enable_prefix_caching") is not False and not extra.get("prefix_cache_reset")


def _by_arm(launches: list[Mapping[str, Any]], name: str) -> dict[str, list[str]]:
    """What launches list under a name → the arms that list it."""
    found: dict[str, list[str]] = defaultdict(list)
    for facts in launches:
        extra = facts.get("extra", {})
        for item in extra.get(name, ()):
            arm = str(extra.get("arm", "?"))
            if arm not in found[str(item)]:
                found[str(item)].append(arm)
    return found


def _servers(arms: list[str]) -> str:
    return f"the server of {' and '.join(sorted(arms))}"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
