"""What the step-time model says of a study, from planted figures."""

from __future__ import annotations

import pytest

from specprof.analyse.modelled import BestDraft, Crossover, HeldOut, ModelFigures
from specprof.analyse.results import Figure
from specprof.publish.model_text import model_document, model_lines

METHODS = {"off": "off", "mtp-k2": "mtp K=2"}


def best(n: int, k: int, modelled: bool = False, offered: tuple[int, ...] = (2, 4)) -> BestDraft:
    return BestDraft("code", "forced", n, "mtp-k2", k, Figure(100.0, 90.0, 110.0), modelled, "mtp-k2", offered)


def planted(*lengths: BestDraft) -> ModelFigures:
    held_out = tuple(HeldOut("code", "forced", "mtp-k2", n, 100.0, 105.0, 0.05) for n in (2, 4))
    crossovers = (
        Crossover("code", "forced", "mtp-k2", Figure(5.5, 3.0, None), "inside", span=(1, 8)),
        Crossover("qa", "forced", "mtp-k2", Figure(5.5, None, 6.0), "inside", span=(2, 8)),
        Crossover("sql", "forced", "mtp-k2", Figure(5.5), "inside"),
        Crossover("json", "forced", "mtp-k2", Figure(None, 8.0, None), "above"),
        Crossover("zh", "forced", "mtp-k2", Figure(None, None, 1.0), "below"),
    )
    return ModelFigures("forced", None, (), held_out, 0.05, 0.14, crossovers, lengths, ("Two cells were left out.",))


def test_the_error_comes_first_then_crossovers_lengths_and_notes() -> None:
    error, crossing, lengths, note = model_lines(planted(best(1, 4), best(8, 3, modelled=True)), METHODS)
    assert "2 cells left out: median error 5.0%, nine in ten within 14%" in error
    assert "mtp K=2 stops gaining" in crossing
    assert "code at 5.50 [3.00, >8] streams" in crossing
    assert "qa at 5.50 [<2, 6.00] streams" in crossing
    assert "sql at 5.50 streams" in crossing, "gains without intervals say nothing of its bounds"
    assert "json beyond the most measured" in crossing
    assert "zh below the fewest measured" in crossing
    assert "code N=1 K=4; code N=8 K=3 (modelled)" in lengths
    assert note == "Two cells were left out."


@pytest.mark.parametrize(("offered", "asked"), [((2, 4), True), ((4,), False)])
def test_the_best_length_is_told_where_several_were_on_offer(offered: tuple[int, ...], asked: bool) -> None:
    """Also where one of them is best at every load; with one alone there was nothing to choose."""
    lines = list(model_lines(planted(best(1, 4, offered=offered), best(8, 4, offered=offered)), METHODS))
    assert any(line == "K* of mtp K=2 and its like: code N=1 K=4; code N=8 K=4." for line in lines) is asked


def test_as_data() -> None:
    told = model_document(planted(best(1, 4)))
    assert (told["held_out_cells"], told["median_error"]) == (2, 0.05)
    assert told["crossovers"][0]["concurrency"] == {"value": 5.5, "low": 3.0, "high": None}
    assert told["best_draft_lengths"][0]["draft_tokens"] == 4
