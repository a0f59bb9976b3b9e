"""How pictures look: colours told apart by everyone and in grey, fonts that show Chinese, error bars, small PNGs.

matplotlib is imported inside functions only, and drawn without pyplot, so nothing global is touched.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from specprof.analyse.results import CellFigures, Figure, GainFigures, GateFinding
from specprof.publish.context import gate_codes
from specprof.publish.numbers import known, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

INK, SOFT, FAINT, PAPER = "#1c2430", "#5b6675", "#d9dee5", "#ffffff"
UNFIT = "#b42318"
# Okabe and Ito's palette, told apart under every common colour blindness
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
ARM_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
DEPTHS = ("#9ecae1", "#5aa5d0", "#2171b5", "#08306b")  # one hue from pale to dark, for what has an order
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
ARM_MARKERS = ("o", "^", "D", "v", "P", "X")  # the square is the off arm's
NAN = float("nan")

WIDTH_IN = 10.0
DPI = 200  # twice the 100 pixels per inch the page shows
MAX_COLUMNS = 3
LONGEST_LABEL = 29  # characters: many more leave no room for what is drawn
LEGEND_LINE_IN, LEGEND_CHARACTER_IN, LEGEND_HANDLE_IN = 0.2, 0.068, 0.54  # at 9 points
PNG_COLOURS = 256  # flat drawings need no more

_CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "SimHei",
    "Arial Unicode MS",
)


@cache
def font_families() -> tuple[str, ...]:
    """DejaVu for Latin, then the first installed font that shows Chinese, if there is one."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ("DejaVu Sans", *[name for name in _CHINESE_FONTS if name in installed][:1])


@cache
def _drawable() -> frozenset[int]:
    """Every character some chosen font can show."""
    from matplotlib import font_manager

    paths = [font_manager.findfont(name) for name in font_families()]
    return frozenset(code for path in paths for code in font_manager.get_font(path).get_charmap())


def label(text: object, instead: str = "") -> str:
    """A text as the chosen fonts can show it, or `instead`. Dollar signs are no mathematics here."""
    line = one_line(text).replace("\N{REPLACEMENT CHARACTER}", "")
    shown = "".join(char for char in line if ord(char) in _drawable() or char == " ").strip(" -_·")
    return _fitting(shown or instead).replace("$", r"\$")


def _fitting(text: str) -> str:
    """A text as long as a picture has room for; a Chinese character takes that of two others, an M that of 1.5."""
    width = 0.0
    for place, char in enumerate(text):
        width += 2 if east_asian_width(char) in "WF" else 1.5 if char in "MWmw@%" else 1
        if width > LONGEST_LABEL:
            return f"{text[:place].rstrip()}…"
    return text


def tag_label(tags: Sequence[str], tag: str) -> str:
    """A content tag, or its number where no font can show it."""
    return label(tag, instead=f"content {tags.index(tag) + 1}")


def shortened(text: str, most: int = 28) -> str:
    """A text that must fit over a panel, its end left out where it is too long."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


@contextmanager
def house_style() -> Iterator[None]:
    """The look of every picture, and quiet about fonts."""
    import matplotlib as mpl

    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(_style()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield
    finally:
        logger.setLevel(level)


def _style() -> dict[Any, Any]:
    return {
        "font.family": list(font_families()),
        "font.size": 9.5,
        "text.color": INK,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": SOFT,
        "axes.labelsize": 9.5,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.7,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
        "errorbar.capsize": 2.5,
        "hatch.linewidth": 0.7,
        "legend.frameon": False,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
    }


class Sheet:
    """A picture: one column of panels per content, wrapped after three, each column `rows` panels high."""

    def __init__(
        self,
        count: int,
        rows: int = 1,
        *,
        panel_height: float = 2.9,
        sharey: bool | str = "row",
        width: float | None = None,
    ) -> None:
        """Lay out `count` panels of `rows` each; `sharey` as matplotlib has it, `width` in inches if given."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas

        self.rows = rows
        self.columns = min(count, MAX_COLUMNS)
        blocks = -(-count // MAX_COLUMNS)
        width = width or (WIDTH_IN if self.columns > 2 else 4.2 * self.columns)
        self.canvas: Canvas = Canvas(
            figsize=(width, panel_height * rows * blocks + 0.45), layout="constrained", dpi=DPI
        )
        self.agg: Any = FigureCanvasAgg(self.canvas)
        self.grid = self.canvas.subplots(rows * blocks, self.columns, squeeze=False, sharey=sharey)  # type: ignore[arg-type]
        for spare in range(count, blocks * self.columns):
            for row in range(rows):
                self.panel(spare, row).set_visible(False)

    def panel(self, index: int, row: int = 0) -> Axes:
        """The panel of a content, `row` down within its column."""
        axes: Axes = self.grid[index // MAX_COLUMNS * self.rows + row][index % MAX_COLUMNS]
        return axes

    def is_first_column(self, index: int) -> bool:
        """Whether the panel stands at the left edge, where the axis is labelled."""
        return index % MAX_COLUMNS == 0

    def legend(self, handles: Sequence[Any]) -> None:
        """One legend for all panels, in as few lines above them as its words allow."""
        columns = _legend_columns([str(handle.get_label()) for handle in handles], self.canvas.get_figwidth())
        lines = -(-len(handles) // columns)
        self.canvas.set_figheight(self.canvas.get_figheight() + (lines - 1) * LEGEND_LINE_IN)
        self.canvas.legend(
            handles=list(handles),
            loc="outside upper left",
            ncols=columns,
            handlelength=2.0,
            columnspacing=1.5,
            fontsize=9,
        )

    def png(self) -> bytes:
        """The picture as a small PNG at twice the size it is shown at. To be asked for once."""
        packed = _small_png(self.agg)
        del self.agg.renderer  # all its pixels: what was drawn is a cycle, and waits for the garbage collector
        return packed


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """How many entries fit beside each other in `width` inches, all columns as wide as the longest where they wrap."""
    widths = [LEGEND_CHARACTER_IN * len(text) + LEGEND_HANDLE_IN for text in labels]
    return len(labels) if sum(widths) <= width else max(1, int(width / max(widths)))


def _small_png(canvas: Any) -> bytes:
    """Drawn once, and packed with few colours."""
    import numpy as np
    from PIL import Image

    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image = image.quantize(PNG_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette = np.array(image.getpalette(), np.uint8).reshape(-1, 3)
    palette[np.asarray(image)[0, 0]] = 255  # the paper's white, which the octree rounds down
    image.putpalette(palette.tobytes())
    packed = BytesIO()
    image.save(packed, "png")
    return packed.getvalue()


def values(figures: Sequence[Figure | None]) -> list[float]:
    """The values to plot, NaN where unknown, which matplotlib leaves out."""
    return [_or_nan(figure.value if figure else None) for figure in figures]


def bars(figures: Sequence[Figure | None]) -> list[list[float]]:
    """Distances down and up to the interval's limits, as error bars want them."""
    told = [figure or Figure(None) for figure in figures]
    down = [_or_nan(figure.value) - _or_nan(figure.low) for figure in told]
    up = [_or_nan(figure.high) - _or_nan(figure.value) for figure in told]
    return [[_length(distance) for distance in down], [_length(distance) for distance in up]]


def line_with_bars(
    axes: Axes,
    xs: Sequence[float],
    figures: Sequence[Figure | None],
    cells: Sequence[CellFigures | GainFigures | None],
    **style: Any,
) -> None:
    """A line with intervals; points of cells that fail an invalid gate are hollow."""
    colour, marker = style["color"], style.pop("marker")
    axes.errorbar(xs, values(figures), yerr=bars(figures), elinewidth=1.1, zorder=3, **style)
    points = zip(xs, values(figures), (cell is None or cell.valid for cell in cells), strict=True)
    for fit, run in groupby(points, key=itemgetter(2)):  # marks are dear to make one by one
        along, up, _ = zip(*run, strict=True)
        face = colour if fit else PAPER
        axes.plot(
            along, up, marker, color=colour, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.4, zorder=4
        )


def mark_unfit(axes: Axes, x: float, y: float, gates: Sequence[GateFinding], *, below: bool = False) -> None:
    """Name the gates that forbid a figure, above or below its mark."""
    if not known(y):
        return
    codes = " ".join(code for code in gate_codes(gates).split() if code.endswith("!"))
    axes.annotate(
        f"gate {codes}" if codes else "unfit",
        (x, y),
        (0, -7 if below else 7),
        textcoords="offset points",
        ha="center",
        va="top" if below else "bottom",
        fontsize=8,
        color=UNFIT,
        fontweight="bold",
        annotation_clip=False,
    )


def arm_look(place: int | None) -> dict[str, Any]:
    """How an arm is drawn in every picture, by its place among those that speculate; None: the arm that does not."""
    if place is None:
        return {"color": SOFT, "marker": "s", "linestyle": "--"}
    lap, colour = divmod(place, len(ARM_COLOURS))
    return {"color": ARM_COLOURS[colour], "marker": ARM_MARKERS[(colour + lap) % len(ARM_MARKERS)]}


def streams_look(depth: int, count: int) -> dict[str, Any]:
    """How the `depth`-th of `count` numbers of streams is drawn: few streams pale, many dark."""
    return {
        "color": DEPTHS[round(depth * (len(DEPTHS) - 1) / max(1, count - 1))],
        "marker": MARKERS[depth % len(MARKERS)],
    }


def upper(figure: Figure | None) -> float:
    """The highest point drawn for a figure: its interval's end, else its value."""
    told = figure or Figure(None)
    return _or_nan(told.high if known(told.high) else told.value)


def lower(figure: Figure | None) -> float:
    """The lowest point drawn for a figure."""
    told = figure or Figure(None)
    return _or_nan(told.low if known(told.low) else told.value)


def hollow_handle() -> Line2D:
    """The legend's word on hollow marks."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {
        "marker": "o",
        "markerfacecolor": PAPER,
        "markeredgewidth": 1.4,
        "linewidth": 0,
        "color": SOFT,
    }
    return Line2D([], [], **look, label="hollow: a gate forbids it")


def ring_handle(words: str) -> Line2D:
    """The legend's word on marks that are ringed."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"marker": "o", "markersize": 10, "markerfacecolor": "none", "linewidth": 0, "color": INK}
    return Line2D([], [], label=words, **look)


def streams_axis(axes: Axes, streams: Sequence[int]) -> None:
    """A base-two axis of concurrent streams with the measured numbers as its ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(streams), [str(n) for n in streams])
    axes.minorticks_off()
    axes.set_xlim(min(streams) / 1.25, max(streams) * 1.25)
    axes.set_xlabel("concurrent streams N")


def doubling_ticks(axes: Axes, low: float, high: float, unit: str = "") -> None:
    """A base-two value axis from `low` to `high`, ticks at the powers of two, written out."""
    axes.set_yscale("log", base=2)
    ticks = [2.0**power for power in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    axes.set_yticks(ticks, [f"{tick:g}{unit}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low, high)


def _length(distance: float) -> float:
    return max(0.0, distance) if known(distance) else NAN


def _or_nan(value: float | None) -> float:
    return value if known(value) else NAN
