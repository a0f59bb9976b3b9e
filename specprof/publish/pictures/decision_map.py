"""What to do, content by content and load by load, on one sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specprof.decide.policy import MARGIN
from specprof.publish.decisions import Action, Choice, Choices, candidates
from specprof.publish.grid import Grid, Protocol
from specprof.publish.numbers import UNKNOWN, interval, number
from specprof.publish.pictures.style import BLUE, INK, ORANGE, PAPER, SOFT, UNFIT, WIDTH_IN, Sheet, label, tag_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

TITLE = "Where speculation is on"
CAPTION = (
    "Speculation gain and its 95% interval at every content and number of streams. On: the whole interval lies above "
    f"{1 + MARGIN:g}, the gain that makes it worth having. Off: the whole of it lies below. Undecided: neither, so "
    "speculation stays off until more blocks decide. First look (dashed): one launch per arm, which shows nothing of "
    "how launches differ. Where several arms were measured, each field names the one that gains most; others may do as "
    "well within their intervals, and arms that are bounds are left out."
)


@dataclass(frozen=True, slots=True)
class Shade:
    """How a field of one action looks. Fills differ in lightness, so they differ in grey."""

    fill: str
    text: str
    hatch: str = ""


SHADES: Mapping[Action, Shade] = {
    Action.ON: Shade(BLUE, PAPER),
    Action.UNDECIDED: Shade(ORANGE, INK),
    Action.OFF: Shade("#eceff3", INK),
    Action.UNFIT: Shade(PAPER, INK, "////"),
}
MEANINGS: Mapping[Action, str] = {
    Action.ON: f"on: whole interval above {1 + MARGIN:g}×",
    Action.UNDECIDED: "undecided",
    Action.OFF: f"off: whole interval below {1 + MARGIN:g}×",
    Action.UNFIT: "not fit: a gate forbids it",
}
FIRST_LOOK: Mapping[str, Any] = {"linestyle": (0, (2, 2)), "linewidth": 1.0}
FIELD_IN = 0.86  # height of a field
LABELS_IN = 1.5  # what the contents' names take of the width
GAP = 0.03  # between fields, as a share of one
SMALLEST_POINTS, LARGEST_POINTS = 5.0, 8.0
CHARACTER = 0.62  # width of a character as a share of its size


def draw(grid: Grid, protocol: Protocol, chosen: Choices) -> bytes | None:
    """The picture as PNG, None if there is nothing to choose."""
    streams = sorted({concurrency for _, concurrency in chosen})
    tags = [tag for tag in grid.tags_of(protocol) if any(tag == of for of, _ in chosen)]
    if not tags:
        return None
    sheet = Sheet(1, panel_height=FIELD_IN * len(tags) + 0.5, width=WIDTH_IN)
    axes = sheet.panel(0)
    several = len(candidates(grid)) > 1
    width_in = (WIDTH_IN - LABELS_IN) / len(streams)
    for row, tag in enumerate(tags):
        for column, concurrency in enumerate(streams):
            choice = chosen.get((tag, concurrency))
            if choice is None:
                axes.text(column, row, UNKNOWN, ha="center", va="center", color=SOFT)
                continue
            _draw_field(axes, (column, row), choice, _arm_words(grid, choice) if several else "", width_in)
    _finish(axes, [tag_label(grid.tags, tag) for tag in tags], streams)
    sheet.legend(_handles())
    return sheet.png()


def _arm_words(grid: Grid, choice: Choice) -> str:
    """The arm to switch on; where none is, the one that gains most."""
    name = label(grid.methods.get(choice.arm, choice.arm), instead=f"arm {grid.on_arms.index(choice.arm) + 1}")
    return name if choice.action is Action.ON else f"best: {name}"


def _draw_field(axes: Axes, at: tuple[int, int], choice: Choice, arm: str, width_in: float) -> None:
    """Gain, interval, action and, where there are several, the arm: four lines about the middle."""
    from matplotlib.patches import Rectangle

    shade = SHADES[choice.action]
    corner = (at[0] - 0.5 + GAP / 2, at[1] - 0.5 + GAP)
    look: dict[str, Any] = {"facecolor": shade.fill, "edgecolor": UNFIT if shade.hatch else SOFT, "linewidth": 0.6}
    axes.add_patch(Rectangle(corner, 1 - GAP, 1 - 2 * GAP, hatch=shade.hatch, **look))
    if choice.first_look:
        inner = (corner[0] + GAP / 2, corner[1] + GAP)
        axes.add_patch(Rectangle(inner, 1 - 2 * GAP, 1 - 4 * GAP, fill=False, edgecolor=shade.text, **FIRST_LOOK))
    action = f"{choice.action} · first look" if choice.first_look else str(choice.action)
    small = [text for text in (interval(choice.gain), action, arm) if text]
    backing = {"boxstyle": "square,pad=0.15", "facecolor": PAPER, "edgecolor": "none"} if shade.hatch else None
    below = len(small) * 0.5
    axes.annotate(
        f"{number(choice.gain.value)}×", at, (0, below * 11), textcoords="offset points", ha="center", va="center",
        fontsize=12, fontweight="bold", color=shade.text, bbox=backing,
    )  # fmt: skip
    for line, text in enumerate(small):
        axes.annotate(
            text, at, (0, below * 11 - 14 - 11 * line), textcoords="offset points", ha="center", va="center",
            fontsize=_points(text, width_in), color=shade.text, bbox=backing,
        )  # fmt: skip


def _points(text: str, width_in: float) -> float:
    """The largest size at which a line fits into its field."""
    return min(LARGEST_POINTS, max(SMALLEST_POINTS, width_in * 0.94 * 72 / (CHARACTER * len(text))))


def _finish(axes: Axes, tags: list[str], streams: list[int]) -> None:
    axes.grid(visible=False)
    axes.set_xlim(-0.5, len(streams) - 0.5)
    axes.set_ylim(len(tags) - 0.5, -0.5)
    axes.set_xticks(range(len(streams)), [str(n) for n in streams])
    axes.set_yticks(range(len(tags)), tags, color=INK, fontsize=10.5)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel("concurrent streams N")


def _handles() -> list[Patch]:
    from matplotlib.patches import Patch

    handles = []
    for action, shade in SHADES.items():
        edge = UNFIT if shade.hatch else SOFT
        handles.append(
            Patch(facecolor=shade.fill, edgecolor=edge, hatch=shade.hatch, linewidth=0.6, label=MEANINGS[action])
        )
    return handles
