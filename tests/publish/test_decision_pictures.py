"""The pictures a decision is read from: drawn for the right studies, with units, and crossovers where they must be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf, sqrt
from typing import Any

import pytest

from specprof.analyse.results import DecisionFigures, Figure, StudyFigures
from specprof.publish import decisions
from specprof.publish.decisions import Action, Choice, Crossing, crossover
from specprof.publish.figures import draw
from specprof.publish.grid import Grid
from specprof.publish.pictures import decision_map, draft_length, gain_curve, style
from specprof.publish.pictures.decision_map import SHADES
from specprof.publish.pictures.draft_length import BestLength
from specprof.study.bounds import Bound
from tests.publish.planted import NGRAM, TARGET, drafting, planted

CLEAR, COSTLY, OPEN = (1.5, 1.4, 1.6), (0.8, 0.75, 0.85), (1.05, 0.95, 1.15)
FALLING = {1: (2.0, sqrt(2), 2 * sqrt(2)), 4: (0.5, sqrt(2) / 4, sqrt(2) / 2)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[style.Sheet]:
    """Every sheet that was turned into a picture, with its axes still readable."""
    sheets: list[style.Sheet] = []

    def keep(sheet: style.Sheet) -> bytes:
        sheet.agg.draw()
        sheets.append(sheet)
        return b"a picture"

    monkeypatch.setattr(style.Sheet, "png", keep)
    return sheets


def lengths_study(gains_by_length: dict[int, tuple[float, float, float]], blocks: int = 4) -> Grid:
    """One content, one stream, one draft model at several lengths."""
    gains = {f"k{length}": {"code": {1: gain}} for length, gain in gains_by_length.items()}
    return Grid(planted(gains, {f"k{k}": drafting("small", k) for k in gains_by_length}, blocks=blocks))


# -- where a gain falls through one -----------------------------------------------------------------------------------


def test_crossover_lies_where_the_straight_line_between_logarithms_does() -> None:
    # ln 2 at ln 1 and -ln 2 at ln 4 meet zero half-way, at ln 2. The lower bound falls from ln 2 / 2 by 2 ln 2: a
    # quarter of the way, 4 ** (1/4). The upper bound falls from 3 ln 2 / 2 by as much: three quarters, 4 ** (3/4).
    found = crossover([(n, Figure(*gain)) for n, gain in FALLING.items()])
    assert found is not None
    assert (found.streams, found.low, found.high) == pytest.approx((2.0, 4**0.25, 4**0.75))


def test_a_gain_of_exactly_one_is_where_it_falls() -> None:
    assert crossover([(2, Figure(1.0)), (8, Figure(0.5))]) == Crossing(2.0)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1.5, 1.2, 1.1], id="never falls that far"),
        pytest.param([0.9, 0.8, 0.7], id="was never above"),
        pytest.param([0.8, 1.0, 1.2], id="rises"),
        pytest.param([1.2, None, 0.8], id="what lies between is not fit"),
    ],
)
def test_no_crossover_is_invented(values: list[float | None]) -> None:
    assert crossover([(n, value and Figure(value)) for n, value in zip((1, 2, 4), values, strict=True)]) is None


def test_interval_that_leaves_the_measured_range_is_open() -> None:
    found = crossover([(1, Figure(1.1, 0.9, 1.3)), (4, Figure(0.95, 0.85, 1.05))])
    assert found is not None
    assert (found.low, found.high) == (0.0, inf)


def test_gain_that_falls_twice_crosses_at_the_last_and_has_an_interval_from_the_first() -> None:
    high_low = (2.0, 0.5, 2.0, 0.5)
    found = crossover([(n, Figure(value, value, value)) for n, value in zip((1, 4, 16, 64), high_low, strict=True)])
    assert found is not None
    assert (found.streams, found.low, found.high) == pytest.approx((32.0, 2.0, 32.0))


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((1.10, 1.031, 1.17), Action.ON),
        ((1.10, 1.029, 1.17), Action.UNDECIDED),
        ((1.00, 0.99, 1.031), Action.UNDECIDED),
        ((1.01, 1.001, 1.029), Action.OFF),  # surely a gain, and surely not one worth having
        ((0.90, 0.85, 0.95), Action.OFF),
        ((2.00, None, None), Action.UNDECIDED),
    ],
)
def test_the_whole_interval_must_lie_on_one_side_of_three_per_cent(
    gain: tuple[float, float | None, float | None], expected: Action
) -> None:
    (found,) = planted({"on": {"code": {1: gain}}}, {"on": NGRAM}).gains
    assert decisions.action(found) is expected
    assert decisions.action(replace(found, valid=False)) is Action.UNFIT


def test_of_several_arms_the_one_that_is_on_is_chosen_then_the_one_that_gains_most() -> None:
    gains = {
        "wide": {"code": {1: (1.9, 0.9, 2.9), 2: (0.95, 0.90, 1.00), 4: (1.9, 1.5, 2.3)}},
        "sure": {"code": {1: (1.2, 1.1, 1.3), 2: (0.85, 0.80, 0.90), 4: (1.5, 1.4, 1.6)}},
    }
    grid = Grid(planted(gains, {"wide": drafting("a"), "sure": drafting("b")}))
    found = decisions.choices(grid, grid.protocols[0])
    assert {n: (choice.action, choice.arm) for (_, n), choice in found.items()} == {
        1: (Action.ON, "sure"),
        2: (Action.OFF, "wide"),
        4: (Action.ON, "wide"),
    }


def test_bounds_are_never_chosen() -> None:
    arms = {"itself": drafting(TARGET), "noise": drafting(f"random:{TARGET}"), "real": drafting("small")}
    gains = {"itself": {"code": {1: CLEAR}}, "noise": {"code": {1: CLEAR}}, "real": {"code": {1: COSTLY}}}
    grid = Grid(planted(gains, arms))
    assert decisions.bounds_of(grid) == {"itself": Bound.UPPER, "noise": Bound.LOWER}
    assert decisions.choices(grid, grid.protocols[0])["code", 1].arm == "real"


def test_heads_that_name_the_target_are_no_bound() -> None:
    mtp = {"method": "mtp", "model": TARGET, "num_speculative_tokens": 3}
    assert decisions.bounds_of(Grid(planted({"heads": {"code": {1: CLEAR}}}, {"heads": mtp}))) == {}


@pytest.mark.parametrize(("blocks", "expected"), [(1, True), (2, False)])
def test_one_launch_is_a_first_look(blocks: int, expected: bool) -> None:
    grid = Grid(planted({"on": {"code": {1: CLEAR}}}, {"on": NGRAM}, blocks=blocks))
    assert decisions.choices(grid, grid.protocols[0])["code", 1].first_look is expected


# -- which pictures, with which axes ----------------------------------------------------------------------------------


def names(figures: StudyFigures) -> set[str]:
    """Which pictures there are, without the time it takes to paint them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style.Sheet, "png", lambda _sheet: b"a picture")
        return {picture.name for picture in draw(figures)}


def test_decisions_and_gains_need_a_comparison(small: StudyFigures) -> None:
    assert {"decisions", "speculation-gain"} <= names(small)
    assert not {"decisions", "speculation-gain", "draft-length"} & names(replace(small, gains=()))


def test_draft_length_needs_arms_that_differ_in_length_alone() -> None:
    one = {"code": {1: CLEAR}}
    same = {"k2": drafting("small", 2), "k4": drafting("small", 4)}
    other = {"k2": drafting("small", 2), "k4": drafting("large", 4)}
    assert "draft-length" in names(planted({"k2": one, "k4": one}, same))
    assert "draft-length" not in names(planted({"k2": one, "k4": one}, other))


def test_a_second_family_of_lengths_has_a_picture_of_its_own() -> None:
    arms = {f"{model}-k{k}": drafting(model, k) for model in ("small", "large") for k in (2, 4)}
    found = names(planted({arm: {"code": {1: CLEAR}} for arm in arms}, arms))
    assert {name for name in found if name.startswith("draft-length")} == {"draft-length", "draft-length-large-k2"}


def test_arms_whose_names_read_alike_as_files_keep_a_picture_each() -> None:
    arms = {name: drafting(name, 4) for name in ("first", "k=4", "k-4")}
    found = names(planted({arm: {"code": {1: CLEAR}} for arm in arms}, arms))
    assert {name for name in found if name.startswith("gains")} == {"gains", "gains-k-4", "gains-k-4-2"}


def test_gain_curve_marks_the_crossover_on_a_base_two_axis(drawn: list[style.Sheet]) -> None:
    grid = Grid(planted({"on": {"code": FALLING, "zh": {1: CLEAR, 4: CLEAR}}}, {"on": NGRAM}))
    assert gain_curve.draw(grid, grid.protocols[0])
    code, zh = (drawn[0].panel(index) for index in range(2))
    assert code.get_xlabel() == "concurrent streams N"
    assert code.get_ylabel() == "speculation gain, on / off (×)"
    assert [text.get_text() for text in code.get_xticklabels()] == ["1", "4"]
    assert code.get_xscale() == "log"
    assert code.get_yscale() == "log"
    marks = [(x, y) for line in code.lines for x, y in [(line.get_xdata(), line.get_ydata())] if len(x) == 1]
    assert any(x[0] == pytest.approx(2.0) and y[0] == 1 for x, y in marks)
    assert [text.get_text() for text in code.texts] == ["N* 2.00 [1.41, 2.83]"]
    assert not zh.texts
    assert any(list(line.get_ydata()) == [1, 1] for line in zh.lines)  # the line at one


def test_every_gain_and_interval_lies_inside_its_panel(drawn: list[style.Sheet]) -> None:
    gains = {f"k{k}": {"code": FALLING} for k in range(1, 8)}
    grid = Grid(planted(gains, {f"k{k}": drafting("small", k) for k in range(1, 8)}))
    assert gain_curve.draw(grid, grid.protocols[0])
    axes = drawn[0].panel(0)
    low, high = axes.get_ylim()
    assert low < FALLING[4][1]
    assert high > FALLING[1][2]
    left, right = axes.get_xlim()
    points = [x for line in axes.lines for x in line.get_xdata() if line.get_transform() == axes.transData]
    assert left < min(points)
    assert right > max(points)


def test_decision_map_writes_gain_action_and_first_look_into_each_field(drawn: list[style.Sheet]) -> None:
    gains = {"on": {"code": {1: CLEAR, 8: OPEN}, "zh": {1: COSTLY}}}
    grid = Grid(planted(gains, {"on": NGRAM}, blocks=1, unfit=("on", "code", 8)))
    protocol = grid.protocols[0]
    assert decision_map.draw(grid, protocol, decisions.choices(grid, protocol))
    axes = drawn[0].panel(0)
    texts = [text.get_text() for text in axes.texts]
    assert texts == [
        *("1.50×", "[1.40, 1.60]", "on · first look"),
        *("1.05×", "[0.95, 1.15]", "not fit · first look"),
        *("0.80×", "[0.75, 0.85]", "off · first look"),
        "—",
    ]
    assert axes.get_xlabel() == "concurrent streams N"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "8"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["code", "zh"]
    hatches = [patch.get_hatch() for patch in axes.patches if patch.get_fill()]
    assert sum(bool(hatch) for hatch in hatches) == 1


def test_what_was_decided_replaces_the_plain_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(decision_map, "draw", lambda _grid, _protocol, chosen: given.append(chosen))
    figures = planted({"on": {"code": {1: CLEAR}}}, {"on": NGRAM})
    decided = DecisionFigures("code", "forced", 1, "off", "on", "ngram K=4", Figure(1.5), first_look=False, reason="")
    draw(replace(figures, decisions=(decided,)))
    draw(figures)
    assert given[0] == {("code", 1): Choice(Action.OFF, "on", Figure(1.5), first_look=False)}
    assert given[1]["code", 1].action is Action.ON


# -- the best draft length --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "blocks", "expected"),
    [
        pytest.param({2: (1.3, 1.2, 1.4), 4: (1.5, 1.4, 1.6)}, 4, BestLength(4, True), id="fastest that is on"),
        pytest.param({2: (1.3, 1.2, 1.4), 4: (1.5, 0.9, 2.1)}, 4, BestLength(2, True), id="a faster one is undecided"),
        pytest.param({2: COSTLY, 4: COSTLY}, 4, BestLength(0, True), id="all are off"),
        pytest.param({2: OPEN, 4: COSTLY}, 4, BestLength(2, False), id="the fastest is undecided"),
        pytest.param({2: (0.98, 0.9, 1.06), 4: COSTLY}, 4, BestLength(0, False), id="off is fastest, undecided"),
        pytest.param({2: (1.3, 1.2, 1.4), 4: COSTLY}, 1, BestLength(2, False), id="seen in one launch"),
    ],
)
def test_best_length(gains: dict[int, tuple[float, float, float]], blocks: int, expected: BestLength) -> None:
    grid = lengths_study(gains, blocks)
    (family,) = draft_length.families(grid)
    assert family.arms == {0: "off", 2: "k2", 4: "k4"}
    assert draft_length.best_length(grid, grid.protocols[0], "code", 1, family) == expected


def test_draft_length_axis_starts_at_off_and_carries_units(drawn: list[style.Sheet]) -> None:
    grid = lengths_study({2: (1.3, 1.2, 1.4), 7: (1.5, 1.4, 1.6)})
    assert draft_length.draw(grid, grid.protocols[0], draft_length.families(grid)[0])
    axes = drawn[0].panel(0)
    assert axes.get_xlabel() == "draft length K, tokens"
    assert axes.get_ylabel() == "aggregate throughput, tok/s"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["off", "2", "7"]
    assert "K*=7" in {text.get_text() for text in axes.texts}


# -- read by everyone -------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio, WCAG 2.2: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_actions_differ_in_grey_and_their_words_can_be_read() -> None:
    filled = [shade for shade in SHADES.values() if not shade.hatch]
    by_lightness = sorted(filled, key=lambda shade: luminance(shade.fill))
    steps = [contrast(a.fill, b.fill) for a, b in pairwise(by_lightness)]
    assert min(steps) > 1.8
    assert all(contrast(shade.fill, shade.text) >= 4.5 for shade in SHADES.values())
    assert [action for action, shade in SHADES.items() if shade.hatch] == [Action.UNFIT]
    assert set(SHADES) == set(Action)


def test_twelve_arms_never_look_alike() -> None:
    assert len({tuple(style.arm_look(place).values()) for place in range(12)}) == 12
