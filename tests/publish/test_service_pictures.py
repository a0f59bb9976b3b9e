"""The pictures of the service view: what is drawn is what was measured, with units, and nothing where nothing was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specprof.analyse.results import Figure, StudyFigures
from specprof.publish.figures import draw
from specprof.publish.grid import Grid
from specprof.publish.ladders import Ladder, arm_places, ladders
from specprof.publish.pictures import frontier, load_curve, waterfall
from specprof.publish.pictures.style import PAPER, Sheet, house_style
from tests.publish.served import RATES, make_both, make_hostile, make_served

Canvases = list[Any]


@pytest.fixture(scope="module")
def served() -> StudyFigures:
    return make_served()


@pytest.fixture
def canvases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canvases]:
    """Every sheet that is drawn, to look at what it holds."""
    found: Canvases = []
    png = Sheet.png

    def kept(sheet: Sheet) -> bytes:
        found.append(sheet.canvas)
        return png(sheet)

    monkeypatch.setattr(Sheet, "png", kept)
    with house_style():
        yield found


def code(figures: StudyFigures) -> Ladder:
    return ladders(figures)[0]


def lines_through(axes: Any, xs: list[float], ys: list[float]) -> int:
    """How many lines of a panel go through exactly these points."""
    wanted = np.array([xs, ys])
    drawn = (np.array([line.get_xdata(), line.get_ydata()], dtype=float) for line in axes.lines)
    return sum(line.shape == wanted.shape and np.allclose(line, wanted) for line in drawn)


def test_load_curve_draws_every_rung_of_every_arm(served: StudyFigures, canvases: Canvases) -> None:
    assert load_curve.draw(code(served), arm_places(served)) is not None
    output, first, on_target, each = canvases[0].axes
    shift = load_curve.DODGE * (RATES[-1] - RATES[0]) / 2
    for arm, moved in (("off", -shift), ("on", shift)):
        rungs = code(served).rungs[arm]
        xs = [rate + moved for rate in RATES]
        for axes, figures in (
            (output, [r.waterfall.raw_tok_s for r in rungs]),
            (output, [r.waterfall.effective_tok_s for r in rungs]),
            (on_target, [r.on_target_share for r in rungs]),
            (first, [r.ttft_s.p50 for r in rungs if r.ttft_s]),
            (each, [r.tpot_s.p99 for r in rungs if r.tpot_s]),
        ):
            assert lines_through(axes, xs, [figure.value or 0.0 for figure in figures]) == 1


def test_load_curve_has_units_and_targets_on_its_axes(served: StudyFigures, canvases: Canvases) -> None:
    load_curve.draw(code(served), arm_places(served))
    output, first, on_target, each = canvases[0].axes
    assert {axes.get_xlabel() for axes in canvases[0].axes} == {"offered rate, req/s"}
    assert output.get_ylabel() == "output, tok/s"
    assert (first.get_yscale(), each.get_yscale(), output.get_yscale()) == ("log", "log", "linear")
    assert lines_through(first, [0, 1], [0.5, 0.5]) == lines_through(each, [0, 1], [0.06, 0.06]) == 1
    assert lines_through(on_target, [0, 1], [0.9, 0.9]) == 1
    assert {tick.get_text() for tick in first.get_yticklabels()} & {"100 ms", "1 s"}


def test_collapsed_rungs_are_hollow_and_lost_tails_named(served: StudyFigures, canvases: Canvases) -> None:
    load_curve.draw(code(served), arm_places(served))
    output, first, *_ = canvases[0].axes
    hollow = {
        round(float(line.get_xdata()[0]), 1)
        for line in output.lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == PAPER
    }
    assert hollow == {rung.rate_per_s for rungs in code(served).rungs.values() for rung in rungs if rung.collapsed}
    lost = {
        arm: [r.rate_per_s for r in rungs if r.ttft_s and r.ttft_s.p99.value is None]
        for arm, rungs in code(served).rungs.items()
    }
    assert all(lost.values()), "the planted ladder must hold a lost tail of either arm"
    assert sum("lost" in text.get_text() for text in first.texts) == len(lost)
    rows = [list(line.get_xdata()) for line in first.lines if line.get_transform() == first.get_xaxis_transform()]
    assert all(rates in rows for rates in lost.values())


def test_knee_and_operating_range_are_where_they_were_found(served: StudyFigures, canvases: Canvases) -> None:
    load_curve.draw(code(served), arm_places(served))
    output = canvases[0].axes[0]
    assert {text.get_text() for text in output.texts} == {"knee 1.35", "knee 1.7"}
    spans = {
        tuple(np.round(patch.get_extents().transformed(output.transData.inverted()).intervalx, 3))
        for patch in output.patches
    }
    assert spans == {(0.5, 1.2), (0.5, 1.5)}


def test_arms_differ_in_mark_and_not_in_colour_alone(served: StudyFigures, canvases: Canvases) -> None:
    load_curve.draw(code(served), arm_places(served))
    handles = canvases[0].legends[0].legend_handles
    arms = {handle.get_label(): handle.get_marker() for handle in handles[:2]}
    assert list(arms) == ["speculation off", "ngram K=4"]
    assert len(set(arms.values())) == 2


def test_one_rate_is_no_curve(served: StudyFigures) -> None:
    assert served.service is not None
    one = replace(served.service, rungs=tuple(r for r in served.service.rungs if r.rate_per_s == 1.0))
    with house_style():
        assert load_curve.draw(code(replace(served, service=one)), arm_places(served)) is None


def test_waterfall_shows_both_arms_at_the_telling_rate(served: StudyFigures, canvases: Canvases) -> None:
    found = ladders(served)
    assert waterfall.draw(found, arm_places(served), [ladder.tag for ladder in found]) is not None
    axes = canvases[0].axes[0]
    assert axes.get_title(loc="left") == "code, 1.5 req/s"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["raw", "finished", "on time", "good"]
    assert axes.get_ylabel() == "output, tok/s"
    bars = [patch.get_height() for patch in axes.patches if patch.get_y() == 0]
    expected = [
        figure.value
        for arm in ("off", "on")
        for rung in [found[0].rung(arm, 1.5)]
        if rung is not None
        for figure in waterfall.stages(rung)
    ]
    assert bars == pytest.approx(expected)


def test_frontier_draws_every_point_with_its_streams(canvases: Canvases) -> None:
    figures = make_both()
    grid = Grid(figures)
    assert frontier.draw(grid, grid.protocols[0]) is not None
    axes = canvases[0].axes[0]
    assert axes.get_xlabel() == "TPOT of the median request, ms"
    off = next(f for f in figures.frontiers if (f.tag, f.protocol, f.arm) == ("code", "forced", "off"))
    xs = [1000 * (point.tpot_s.value or 0) for point in off.points]
    assert lines_through(axes, xs, [point.throughput_tok_s.value or 0 for point in off.points]) == 1
    names = [text.get_text() for text in axes.texts]
    assert sorted(name for name in names if name.startswith("N=")) == sorted(f"N={n}" for n in (1, 2, 4, 8) * 2)
    assert "target 51 ms" in names
    assert lines_through(axes, [51.0, 51.0], [0, 1]) == 1


def test_a_study_has_one_curve_per_content_and_one_waterfall_per_protocol(served: StudyFigures) -> None:
    found = draw(served)
    assert [picture.name for picture in found] == ["load-curve", "load-curve-zh-served", "waterfall"]
    assert [picture.first for picture in found] == [True, False, True]
    assert "code" in found[0].alt
    assert all(picture.png.startswith(b"\x89PNG") for picture in found)


@pytest.mark.filterwarnings("error")
def test_hostile_names_and_missing_figures_are_drawn_all_the_same(served: StudyFigures) -> None:
    assert served.service is not None
    nothing = Figure(None)
    bare = tuple(
        replace(r, ttft_s=None, tpot_s=None, on_target_share=nothing, targets=replace(r.targets, ttft_s=None))
        for r in served.service.rungs
    )
    for figures in (
        make_hostile(),
        replace(served, service=replace(served.service, rungs=bare, goodputs=(), gains=())),
    ):
        assert all(picture.png.startswith(b"\x89PNG") for picture in draw(figures))
