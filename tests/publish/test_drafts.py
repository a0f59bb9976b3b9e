"""Drafts, side by side: verdicts as the planted intervals demand them, and the figures under them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specprof.analyse.results import DecisionFigures, Figure, StudyFigures, TriedArm
from specprof.publish.context import engine_of
from specprof.publish.drafts import Profile, profiles
from specprof.publish.grid import Grid
from specprof.publish.report import write_report
from tests.publish.planted import NGRAM, TARGET, Gain, Gains, drafting, planted

ON: Gain = (1.50, 1.40, 1.60)
OFF: Gain = (0.90, 0.85, 0.95)
OPEN: Gain = (1.10, 0.99, 1.22)
REST: Gains = {"other": {"code": {1: OFF}}}  # two arms stand side by side, so the one under test needs another


def told(gains: Gains, arms: dict[str, dict[str, object]] | None = None, **changes: object) -> tuple[Profile, ...]:
    arms = arms or {"draft": drafting("small"), "other": dict(NGRAM)}
    figures = planted(gains, arms, **changes)  # type: ignore[arg-type]
    return profiles(Grid(figures), engine_of(figures.environment))


def words(by_tag: dict[str, dict[int, Gain]], **changes: object) -> str:
    """The verdict on one arm with these gains."""
    (profile,) = told({"draft": by_tag, **REST}, **changes)
    return next(verdict.words for verdict in profile.verdicts if verdict.arm == "draft")


def test_use_it_where_the_whole_interval_says_so() -> None:
    gains = {
        "code": {1: ON, 2: ON, 4: ON, 8: OFF},
        "json": {1: ON, 2: ON, 4: ON, 8: ON},
        "zh-prose": {1: OFF, 2: OFF, 4: OFF, 8: OFF},
    }
    assert (
        words(gains)
        == "use it for code up to 4 streams and json up to 8 streams; not for code at 8 streams and zh-prose"
    )


@pytest.mark.parametrize(
    ("by_streams", "expected"),
    [
        pytest.param({1: ON, 2: OFF, 4: OFF}, "use it for code at 1 stream; not for code from 2 streams", id="one"),
        pytest.param(
            {1: OFF, 2: ON, 4: OFF}, "use it for code at 2 streams; not for code at 1 and 4 streams", id="middle"
        ),
        pytest.param(
            {4: ON, 8: ON, 16: OFF}, "use it for code at 4 and 8 streams; not for code at 16 streams", id="no 1"
        ),
        pytest.param({1: OFF, 4: ON, 8: ON}, "use it for code from 4 streams; not for code at 1 stream", id="many"),
    ],
)
def test_loads_are_never_said_to_hold_where_they_were_not_measured(by_streams: dict[int, Gain], expected: str) -> None:
    assert words({"code": by_streams}) == expected


def test_a_draft_that_helps_nothing_is_said_to() -> None:
    gains = {"code": {1: (0.98, 0.95, 1.01), 4: OFF}, "zh-prose": {1: OFF, 4: OFF}}
    assert words(gains) == "helps nothing, at best 0.98× [0.95, 1.01] for code at N=1"


def test_a_sure_gain_that_is_not_worth_having_helps_nothing() -> None:
    assert words({"code": {1: (1.02, 1.01, 1.029)}}) == "helps nothing, at best 1.02× [1.01, 1.03] for code at N=1"


def test_undecided_says_what_would_decide_it() -> None:
    # ln(1.10 / 1.03) = 0.0657; half the interval is ln(1.22 / 0.99) / 2 = 0.1044 = t3 · s / 2, so s = 0.0656;
    # t · s / sqrt(n) is 0.0689 for 6 blocks (t = 2.571) and 0.0607 for 7 (2.447)
    assert words({"code": {1: OPEN}}) == (
        "undecided for code: 1.10× [0.99, 1.22] for code at N=1, "
        "and to decide it: about blocks: 7 (now 4), if the estimate stays where it is"
    )


def test_of_several_undecided_the_nearest_to_a_decision_is_named() -> None:
    gains = {"code": {1: OPEN, 2: (1.04, 0.90, 1.20)}, "json": {1: OFF, 2: (1.00, 0.90, 1.11)}}
    found = words(gains)
    assert found.startswith(
        "not for json at 1 stream; undecided for code and json at 2 streams: nearest to a decision is "
    )
    assert "is 1.10× [0.99, 1.22] for code at N=1, and" in found


def test_the_interval_that_holds_for_all_arms_together_decides_where_the_policy_took_the_arm() -> None:
    figures = planted(
        {"draft": {"code": {1: (1.10, 1.04, 1.16)}}, **REST}, {"draft": drafting("small"), "other": dict(NGRAM)}
    )
    gain = Figure(1.10, 1.02, 1.19)
    tried = (TriedArm("draft", gain, fit=True, tied=False),)
    wider = DecisionFigures("code", "forced", 1, "undecided", "draft", "", gain, False, "", 0.975, tried)
    (alone,), (together,) = (
        profiles(Grid(of), engine_of(of.environment)) for of in (figures, replace(figures, decisions=(wider,)))
    )
    assert alone.verdicts[0].words == "use it for code at 1 stream"
    assert together.verdicts[0].words.startswith("undecided for code: 1.10× [1.02, 1.19]")


def test_one_launch_recommends_nothing() -> None:
    found = words({"code": {1: ON, 4: OFF}}, blocks=1)
    assert found == (
        "first look, no decision (one launch per arm; blocks: 4 would show more): "
        "would be used for code at 1 stream; not for code at 4 streams"
    )


def test_unfit_gains_are_counted_for_nothing() -> None:
    found = words({"code": {1: ON, 4: ON}}, unfit=("draft", "code", 4))
    assert found == "use it for code at 1 stream; no fit figure for code at 4 streams: read the gates"


@pytest.mark.parametrize(("model", "label"), [(TARGET, "upper bound"), (f"random:{TARGET}", "lower bound")])
def test_bounds_are_explained_and_never_recommended(model: str, label: str) -> None:
    gains = {"bound": {"code": {1: ON, 4: ON}}, "other": {"code": {1: OFF, 4: OFF}}}
    (profile,) = told(gains, {"bound": drafting(model), "other": dict(NGRAM)})
    (verdict,) = (verdict for verdict in profile.verdicts if verdict.arm == "bound")
    assert verdict.words.startswith(f"{label}, no candidate: ")
    assert "use" not in verdict.words
    (row,) = (row for row in profile.table.groups[0].rows if row.entries[0].aside)
    assert row.entries[0].aside == label


def test_a_sentence_can_be_quoted_alone() -> None:
    (profile,) = told({"draft": {"code": {1: ON, 4: ON}}, **REST})
    assert profile.verdicts[0].sentence == (
        f"draft_model K=4 · forced 128 · vLLM 0.32.0 CPU · target {TARGET} · worth having from 1.03×: "
        "use it for code up to 4 streams."
    )


def test_the_table_holds_acceptance_cost_and_every_gain() -> None:
    (profile,) = told({"draft": {"code": {1: ON, 2: OPEN, 8: OFF}}, "other": {"code": {1: OFF, 2: OFF, 8: OFF}}})
    assert [(column.heading, column.unit) for column in profile.table.columns] == [
        ("arm", ""),
        ("AL", "tokens, N=1"),
        ("tokens per step", "engine step, N=1"),
        ("conditional acceptance", "by position, N=1"),
        ("step time", "on / off, N=1"),
        ("step time", "on / off, N=8"),
        ("gain", "on / off, N=1"),
        ("gain", "on / off, N=2"),
        ("gain", "on / off, N=8"),
        ("gates", ""),
    ]
    (group,) = profile.table.groups
    texts = [(entry.text, entry.aside) for entry in group.rows[0].entries]
    assert texts[0] == ("draft_model K=4", "")
    # survival .71 .54 .42 .34 times .99 at N = 1 in `make_cell`: 70%, 54/71 = 76%, 42/54 = 78%, 34/42 = 81%
    assert texts[3] == ("70% · 76% · 78% · 81%", "")
    assert texts[6:9] == [("1.50", "[1.40, 1.60]"), ("1.10", "[0.99, 1.22]"), ("0.90", "[0.85, 0.95]")]


def test_one_arm_is_beside_nothing(study: StudyFigures) -> None:
    assert profiles(Grid(study), engine_of(study.environment)) == ()


def test_the_section_is_in_both_reports_and_renders_hostile_text_as_text(tmp_path: Path) -> None:
    hostile = "<b>|draft|</b>"
    figures = planted({"draft": {hostile: {1: ON, 4: OFF}}, "other": {hostile: {1: OFF, 4: OFF}}}, {
        "draft": drafting("small"), "other": dict(NGRAM)
    })  # fmt: skip
    page = write_report(figures, tmp_path).read_text(encoding="utf-8")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert '<section id="drafts">' in page
    assert '<a href="#drafts">' in page
    assert "use it for &lt;b&gt;|draft|&lt;/b&gt; at 1 stream" in page
    assert hostile not in page
    assert "## Drafts, side by side" in text
    assert r"use it for &lt;b>\|draft\|&lt;/b> at 1 stream" in text
    assert "![Where speculation is on" in text
    assert len(re.findall(r"helps nothing, at best 0\.90× \[0\.85, 0\.95\]", text)) == 1


def test_a_study_of_one_arm_has_no_such_section(small: StudyFigures, tmp_path: Path) -> None:
    page = write_report(replace(small, verdicts=()), tmp_path).read_text(encoding="utf-8")
    assert "Drafts, side by side" not in page
    assert "#drafts" not in page
