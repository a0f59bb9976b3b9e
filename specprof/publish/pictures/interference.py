"""What happened, chunk by chunk: the decoders around a newcomer, its prompt read whole above, in chunks below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from specprof.analyse.interference import CHUNKED, WHOLE, InterferenceFigures, Timeline
from specprof.publish.numbers import seconds
from specprof.publish.pictures.style import BLUE, ORANGE, PAPER, RED, SOFT, Sheet, label

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

TITLE = "A long prompt arrives"
CAPTION = (
    "Each row is one decoder, each line across it one chunk of its text as it arrived. At 0 the newcomer's long prompt "
    "was sent; shaded: until its first token. The red bar is the longest stall, the longest gap of any decoder in that "
    "time. Read whole, the prompt makes one step long for everybody; read in chunks, it makes many steps a little "
    "longer, and its own first token usually comes later. In brackets: max_num_batched_tokens, the most tokens that "
    "one step takes. All panels have one time axis; one block is shown."
)
BEFORE, AFTER = 0.35, 0.25  # of the longest reading: how much of what came before and after is shown
ROW_IN = 0.22
_READ = {WHOLE: "read whole", CHUNKED: "read in chunks"}


def draw(cells: Sequence[InterferenceFigures], methods: Mapping[str, str]) -> bytes | None:
    """The cells of one newcomer and number of decoders as PNG: arms side by side; None if nothing was read."""
    shown = [met for met in cells if met.timeline is not None]
    if not shown:
        return None
    arms = list(dict.fromkeys(met.arm for met in shown))
    sizes = sorted({met.max_num_batched_tokens for met in shown}, reverse=True)
    longest = max(met.timeline.first_token_s for met in shown if met.timeline)
    span = (-BEFORE * longest, (1 + AFTER) * longest)
    rows = max(len(met.timeline.chunks_s) for met in shown if met.timeline)
    sheet = Sheet(len(arms), len(sizes), panel_height=0.95 + ROW_IN * rows, sharey=True, width=10.0)
    for column, arm in enumerate(arms):
        for row, size in enumerate(sizes):
            axes = sheet.panel(column, row)
            met = next((m for m in shown if (m.arm, m.max_num_batched_tokens) == (arm, size)), None)
            if met is None or met.timeline is None:
                axes.set_visible(False)
                continue
            axes.set_title(f"{label(methods.get(arm, met.method), instead=arm)}, {_READ[met.reading]} ({size})")
            _draw_timeline(axes, met.timeline, span)
            _finish(axes, rows, span, last=row == len(sizes) - 1)
    sheet.legend(_handles())
    return sheet.png()


def _draw_timeline(axes: Axes, timeline: Timeline, span: tuple[float, float]) -> None:
    axes.axvspan(0, timeline.first_token_s, color=ORANGE, alpha=0.22, linewidth=0, zorder=1)
    inside = [[at for at in chunks if span[0] <= at <= span[1]] for chunks in timeline.chunks_s]
    axes.eventplot(
        inside, lineoffsets=list(range(len(inside))), linelengths=0.62, linewidths=1.0, colors=BLUE, zorder=3
    )
    found = longest_stall(timeline)
    if found is None:
        return
    row, start, end = found
    axes.plot([start, end], [row, row], color=RED, linewidth=3.2, solid_capstyle="butt", zorder=4)
    axes.annotate(
        seconds(end - start),
        ((start + end) / 2, row),
        (0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8.5,
        fontweight="bold",
        color=RED,
        zorder=5,
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
    )


def longest_stall(timeline: Timeline) -> tuple[int, float, float] | None:
    """Row, start and end of the longest gap that overlaps the newcomer's reading; None if no decoder was writing."""
    gaps = (
        (end - start, row, start, end)
        for row, chunks in enumerate(timeline.chunks_s)
        for start, end in pairwise(chunks)
        if start < timeline.first_token_s and end > 0
    )
    longest = max(gaps, key=lambda gap: gap[0], default=None)
    return None if longest is None else longest[1:]


def _finish(axes: Axes, rows: int, span: tuple[float, float], *, last: bool) -> None:
    axes.set_yticks(range(rows), [f"decoder {row + 1}" for row in range(rows)])
    axes.set_ylim(rows - 0.4, -0.85)
    axes.set_xlim(*span)
    axes.grid(False)
    axes.axvline(0, color=SOFT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
    if last:
        axes.set_xlabel("seconds from when the newcomer was sent")


def _handles() -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    chunk = Line2D([], [], color=BLUE, linewidth=0, marker="|", markersize=10, markeredgewidth=1.2)
    chunk.set_label("a chunk arrived")
    return [
        chunk,
        Patch(facecolor=ORANGE, alpha=0.22, label="the newcomer waits for its first token"),
        Line2D([], [], color=RED, linewidth=3.2, label="longest stall"),
    ]
