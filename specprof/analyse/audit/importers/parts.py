"""What several importers need of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specprof.analyse.audit.importers.document import Document
from specprof.errors import InputError


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)


def told_draft_tokens(num_steps: int | None, num_drafted: int | None) -> int | None:
    """K where every step drafted the same number of tokens, as far as totals can tell."""
    if not num_steps or not num_drafted or num_drafted % num_steps:
        return None
    return num_drafted // num_steps


def survival_of(histogram: Mapping[int, float]) -> tuple[float, ...]:
    """S_j from how many steps accepted exactly 0, 1, 2 … tokens."""
    total = sum(histogram.values())
    if total <= 0:
        return ()
    return tuple(sum(n for i, n in histogram.items() if i >= j) / total for j in range(1, max(histogram) + 1))


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """The most (start, end) spans that overlap at any instant."""
    edges = sorted(edge for start, end in spans for edge in ((start, 1), (end, -1)))
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


def nothing_completed(data: Document) -> InputError:
    """The refusal of a run without a single finished request."""
    return InputError(
        f"{data.name}: no request completed, so there is no number to audit. See the tool's own log for why."
    )
