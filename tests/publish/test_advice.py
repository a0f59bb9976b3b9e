"""The first sentence and the advice say what the policy decided, never what an arm's own interval seems to say."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest

from specprof.analyse.results import DecisionFigures, Figure, StudyFigures, TriedArm
from specprof.analyse.stats import t_quantile
from specprof.decide.looks import look_confidence
from specprof.decide.policy import MARGIN, decisions
from specprof.publish.advice import Advice, advice
from specprof.publish.summary import answer
from tests.decide.policies import figures_of, measured
from tests.decide.policies import study as study_of
from tests.publish.planted import NGRAM, Gain, drafting, planted

ARMS = {"draft": drafting("small"), "ngram": dict(NGRAM)}
ON: Gain = (1.10, 1.04, 1.16)


def told(draft: Gain, ngram: Gain, decided: DecisionFigures | None, blocks: int = 4) -> StudyFigures:
    """Two arms at one load, and what the policy made of it."""
    study = planted({"draft": {"code": {1: draft}}, "ngram": {"code": {1: ngram}}}, ARMS, blocks=blocks)
    return replace(study, decisions=(decided,) if decided else ())


def decision(
    words: str, draft: Gain, ngram: Gain, *, first_look: bool = False, fit: bool = True, tied: bool = False
) -> DecisionFigures:
    """What the policy made of both arms, with the intervals that hold together; the draft is the faster one."""
    tried = (TriedArm("draft", Figure(*draft), fit, tied=False), TriedArm("ngram", Figure(*ngram), fit=True, tied=tied))
    return DecisionFigures("code", "forced", 1, words, "draft", "", Figure(*draft), first_look, "", 0.975, tried)


def of(arm: str, figures: StudyFigures) -> Advice:
    return next(item for item in advice(figures) if item.arm == arm)


def test_an_interval_too_narrow_for_two_arms_is_not_called_a_gain() -> None:
    """Each arm's own interval lies above 1.03; the one that holds for both does not."""
    figures = told(ON, (1.09, 1.04, 1.15), decision("undecided", (1.10, 1.02, 1.19), (1.09, 1.02, 1.18)))
    first, _ = answer(figures)
    assert "pays" not in first
    assert first.startswith(
        "With draft_model K=4, speculation is undecided for code at N=1. With ngram K=4, speculation"
    )
    assert [item.action for item in advice(figures)] == ["Undecided at N=1: keep it off until more is measured."] * 2
    assert of("draft", figures).finding == "undecided: 1.10× [1.02, 1.19] at N=1."


def test_the_arm_that_is_taken_pays_and_a_slower_one_is_called_so() -> None:
    figures = told(ON, (1.09, 1.04, 1.15), decision("on", (1.10, 1.035, 1.17), (1.09, 1.032, 1.16)))
    first, _ = answer(figures)
    assert "With draft_model K=4, speculation pays for code at N=1." in first
    assert "With ngram K=4, speculation is slower than another arm for code at N=1." in first
    assert of("ngram", figures).action == "Another arm is faster at N=1."


@pytest.mark.parametrize(("tied", "blocks"), [(True, 4), (False, 1)], ids=["as fast, for all one knows", "one launch"])
def test_an_arm_that_is_not_told_apart_from_the_one_that_is_taken_is_not_called_slower(tied: bool, blocks: int) -> None:
    both = decision("on", (1.10, 1.035, 1.17), (1.09, 1.032, 1.16), first_look=blocks == 1, tied=tied)
    figures = told(ON, (1.09, 1.04, 1.15), both, blocks)
    assert "With ngram K=4, speculation is not told apart from a faster arm for code at N=1." in answer(figures)[0]
    assert of("ngram", figures).action.endswith("ot told apart from a faster arm at N=1.")


def test_an_arm_that_leaves_a_load_undecided_is_the_one_that_is_called_so() -> None:
    """The fastest gains too little, and a slower one may gain enough."""
    narrow, wide = (1.006, 1.004, 1.008), (1.005, 0.90, 1.12)
    figures = told(narrow, wide, decision("undecided", narrow, wide))
    assert of("draft", figures).action == "Leave it off at N=1."
    assert of("ngram", figures).action == "Undecided at N=1: keep it off until more is measured."


def test_a_gate_on_one_stream_alone_forbids_no_gain_at_more() -> None:
    """The policy looks at both cells of the gain; those of one stream are behind the interaction."""
    both = decision("on", (1.10, 1.035, 1.17), (1.09, 0.95, 1.20))
    figures = told(ON, ON, both)
    unfit = replace(figures, gains=tuple(replace(gain, valid=False) for gain in figures.gains))
    assert of("draft", unfit).action == "Speculate at N=1."
    assert of("ngram", unfit).action == "Undecided at N=1: keep it off until more is measured."


def test_an_arm_that_surely_loses_is_left_off_beside_one_that_pays() -> None:
    figures = told(ON, (0.80, 0.75, 0.85), decision("on", (1.10, 1.035, 1.17), (0.80, 0.74, 0.86)))
    assert of("ngram", figures).action == "Leave it off at N=1."


@pytest.mark.parametrize(
    ("words", "low", "high", "said"),
    [
        ("on", 1.04, 1.16, "would pay for code at N=1"),
        ("off", 0.70, 0.90, "would not pay for code at N=1"),
        ("undecided", 0.90, 1.20, "is undecided for code at N=1"),
    ],
)
def test_one_launch_an_arm_is_a_first_look_in_the_first_sentence(
    words: str, low: float, high: float, said: str
) -> None:
    figures = told(
        (1.1, low, high),
        (0.80, 0.75, 0.85),
        decision(words, (1.10, low, high), (0.80, 0.75, 0.85), first_look=True),
        blocks=1,
    )
    first, _ = answer(figures)
    assert first.startswith("First look, no decision (one launch per arm; blocks: 4 would show more). With ")
    assert f"With draft_model K=4, speculation {said}." in first
    assert "speculation pays" not in first
    if words != "undecided":
        assert of("draft", figures).action.startswith("First look, no decision (one launch per arm); would ")


def test_a_figure_that_is_not_fit_is_not_told() -> None:
    figures = told(ON, (0.80, 0.75, 0.85), decision("not fit", ON, (0.80, 0.75, 0.85), fit=False))
    assert of("draft", figures).action == "No answer at N=1: read the gates."


def test_a_first_look_that_decides_nothing_either_way_is_not_told_as_one() -> None:
    figures = told(
        (1.1, 0.9, 1.2),
        (1.0, 0.9, 1.1),
        decision("undecided", (1.1, 0.9, 1.2), (1.0, 0.9, 1.1), first_look=True),
        blocks=1,
    )
    assert answer(figures)[0].startswith("With ")


def test_without_a_decision_the_plain_rule_stands_in_and_one_launch_is_still_a_first_look() -> None:
    assert "speculation pays for code at N=1" in answer(told(ON, ON, None))[0]
    assert answer(told(ON, ON, None, blocks=1))[0].startswith("First look, no decision")


# -- from cells -------------------------------------------------------------------------------------------------------

BLOCKS = 4


@pytest.mark.parametrize(
    ("blocks", "arms"), [(BLOCKS, ["k2", "k4"]), ("auto", ["k4"])], ids=["two arms tried", "three looks planned"]
)
def test_the_first_sentence_agrees_with_the_policy(blocks: int | str, arms: list[str]) -> None:
    """ln of the gain is m ± e in four blocks, so known to t₃ · e / √3, wider at the policy's confidence. The estimate
    lies between the two beyond the margin: an interval of 95% clears it and the policy's does not.
    """
    strict = look_confidence() if blocks == "auto" else 1 - 0.05 / len(arms)
    e = 0.01
    between = (t_quantile(BLOCKS - 1) + t_quantile(BLOCKS - 1, strict)) / 2 * e / sqrt(BLOCKS - 1)
    gains = [exp(log(1 + MARGIN) + between + sign * e) for sign in (1, -1, 1, -1)]
    speeds = {"off": [100.0] * BLOCKS} | {arm: [100 * gain for gain in gains] for arm in arms}
    found, evidence = figures_of(measured(speeds))
    assert all(gain.speculation_gain.low and gain.speculation_gain.low > 1 + MARGIN for gain in found.gains)
    figures = replace(found, decisions=tuple(decisions(study_of(blocks=blocks), found, evidence)))
    assert [one.decision for one in figures.decisions] == ["undecided"]
    assert "pays" not in answer(figures)[0]
    assert all(item.action.startswith("Undecided at N=4") for item in advice(figures))
