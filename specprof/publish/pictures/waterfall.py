"""From raw to effective output at one offered rate, arm beside arm: what is lost, and at which stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specprof.analyse.results import Figure
from specprof.analyse.service_results import RungFigures
from specprof.publish.ladders import Ladder
from specprof.publish.numbers import known, number, percent, rate
from specprof.publish.pictures.load_curve import curve_look, curve_words
from specprof.publish.pictures.style import INK, PAPER, SOFT, Sheet, bars, mark_unfit, shortened, tag_label, upper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

TITLE = "From raw to effective output"
CAPTION = (
    "Output tokens per second at one offered rate: the largest at which the better arm still keeps the targets. Each "
    "stage is a part of the one before; hatched is what the stage lost. Finished: of answers that ended as asked. On "
    "time: of those that kept their latency targets. Good: of those that passed the quality check, too. Bars are 95% "
    "intervals; the share of raw output stands in the last column."
)
STAGES = ("raw", "finished", "on time", "good")
HATCHES = ("", "...", "\\\\\\", "xx", "++", "--")  # of what an arm kept, so that arms differ in grey
GROUP = 0.8  # width of a stage's bars together
HEADROOM = 1.16


def draw(ladders: Sequence[Ladder], places: Mapping[str, int | None], tags: Sequence[str]) -> bytes | None:
    """The picture as PNG, one panel per ladder; None if no output is known."""
    shown = [ladder for ladder in ladders if any(known(_raw(rung)) for rung in _rungs(ladder))]
    if not shown:
        return None
    sheet = Sheet(len(shown), panel_height=3.2, sharey=False)
    looks: dict[str, Patch] = {}
    for index, ladder in enumerate(shown):
        axes = sheet.panel(index)
        axes.set_title(f"{shortened(tag_label(tags, ladder.tag))}, {rate(ladder.telling_rate())} req/s")
        rungs = _rungs(ladder)
        for row, rung in enumerate(rungs):
            place = places[rung.arm]
            looks.setdefault(rung.arm, _handle(rung, place))
            _draw_arm(axes, rung, place, (row - (len(rungs) - 1) / 2) * GROUP / len(rungs), GROUP / len(rungs))
        _finish(axes, rungs)
        if sheet.is_first_column(index):
            axes.set_ylabel("output, tok/s")
    sheet.legend([*looks.values(), _lost_handle()])
    return sheet.png()


def _rungs(ladder: Ladder) -> tuple[RungFigures, ...]:
    found = (ladder.rung(arm, ladder.telling_rate()) for arm in ladder.rungs)
    return tuple(rung for rung in found if rung is not None)


def _raw(rung: RungFigures) -> float | None:
    return rung.waterfall.raw_tok_s.value


def stages(rung: RungFigures) -> tuple[Figure, ...]:
    """The four stages of a rung, in the order of `STAGES`."""
    fall = rung.waterfall
    return fall.raw_tok_s, fall.finished_tok_s, fall.on_time_tok_s, fall.effective_tok_s


def _draw_arm(axes: Axes, rung: RungFigures, place: int | None, shift: float, width: float) -> None:
    look, hatch = curve_look(place), _hatch(place)
    found = stages(rung)
    before: float | None = None
    for stage, figure in enumerate(found):
        x, height = stage + shift, figure.value
        if not known(height):
            continue
        face, edge = (look["color"], PAPER) if rung.valid else (PAPER, look["color"])
        axes.bar(x, height, width * 0.94, color=face, edgecolor=edge, hatch=hatch, linewidth=0.8, zorder=2)
        if before is not None and before > height:
            axes.bar(
                x, before - height, width * 0.94, bottom=height, color=PAPER, edgecolor=look["color"], hatch="////",
                linewidth=0.8, zorder=2, alpha=0.65,
            )  # fmt: skip
        axes.errorbar([x], [height], yerr=bars([figure]), color=INK, elinewidth=1.0, linestyle="none", zorder=4)
        axes.annotate(
            number(height), (x, max(upper(figure), before or 0.0)), (0, 3), textcoords="offset points", ha="center",
            va="bottom", fontsize=7.5, color=INK, zorder=5,
        )  # fmt: skip
        before = height
    _mark(axes, rung, found, 3 + shift)


def _mark(axes: Axes, rung: RungFigures, found: Sequence[Figure], x: float) -> None:
    """What share of the raw output was of use, inside the last bar; above, what forbids the figures."""
    raw, good = found[0].value, found[-1].value
    if known(raw) and known(good) and raw > 0:
        axes.annotate(
            percent(good / raw), (x, 0), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=7.5,
            color=INK, zorder=5, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip
    if not rung.valid:
        mark_unfit(axes, x, upper(found[2]) * 1.06, rung.gates)


def _finish(axes: Axes, rungs: Sequence[RungFigures]) -> None:
    ends = [upper(rung.waterfall.raw_tok_s) for rung in rungs]
    axes.set_ylim(0, HEADROOM * max((end for end in ends if known(end)), default=1.0))
    axes.set_xticks(range(len(STAGES)), STAGES)
    axes.set_xlim(-0.55, len(STAGES) - 0.45)


def _hatch(place: int | None) -> str:
    return HATCHES[0] if place is None else HATCHES[1 + place % (len(HATCHES) - 1)]


def _handle(rung: RungFigures, place: int | None) -> Patch:
    from matplotlib.patches import Patch

    look: dict[str, Any] = {"facecolor": curve_look(place)["color"], "edgecolor": PAPER, "hatch": _hatch(place)}
    return Patch(label=curve_words(rung, place), **look)


def _lost_handle() -> Patch:
    from matplotlib.patches import Patch

    return Patch(facecolor=PAPER, edgecolor=SOFT, hatch="////", label="lost at this stage")
