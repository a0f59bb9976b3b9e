"""The service view, METHOD 8: what open loops say of how good a service is at each offered rate.

`cell` reads one measured cell, `rung` pools those of one rate, `goodput` and `gain` argue over rates and arms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from specprof.analyse import gates
from specprof.analyse.frames import CellFrame
from specprof.analyse.gates.found import LaunchFindings
from specprof.analyse.service.asked import NOTHING_ASKED, Asked, asked_by
from specprof.analyse.service.cell import open_cells
from specprof.analyse.service.findings import rung_gates
from specprof.analyse.service.gain import goodput_gain
from specprof.analyse.service.goodput import Measured, goodput_figures, relied_on, with_collapsed
from specprof.analyse.service.rung import Rung, rung_figures
from specprof.analyse.service_results import GoodputFigures, GoodputGain, ServiceFigures
from specprof.records import Cell

__all__ = ["NOTHING_ASKED", "Asked", "asked_by", "service_figures"]

Place = Callable[[str], tuple[int, str]]  # where a content or protocol stands in the study
LadderKey = tuple[str, str, str]  # tag, protocol, arm

TRACE = "trace"


def service_figures(
    frames: Sequence[CellFrame],
    asked: Asked,
    place: Place,
    of_launch: LaunchFindings = (),
    limits: Mapping[int, gates.Limits] | None = None,
) -> ServiceFigures | None:
    """Everything the open loops among `frames` say; None where there is none.

    `of_launch` and `limits`, by launch number: findings that hold for a whole launch, and what client and machine can
    do at most.
    """
    if not frames:
        return None
    ladders: dict[LadderKey, list[Measured]] = defaultdict(list)
    for rung in _rungs(frames, asked):
        found = rung_gates(rung, of_launch, limits, _without_drafts(rung.cell, frames))
        ladders[_key(rung.cell)].append((rung, rung_figures(rung, found)))
    in_order = dict(sorted(ladders.items(), key=lambda item: _place(item[1][0][0], place)))
    goodputs = {key: _goodput(key, ladder, asked) for key, ladder in in_order.items() if not _is_trace(ladder)}
    return ServiceFigures(
        rungs=tuple(figures for ladder in in_order.values() for _, figures in _rising(ladder)),
        goodputs=tuple(goodputs.values()),
        gains=tuple(_gains(in_order, goodputs)),
        notes=tuple(_notes(frames, ladders)),
    )


def _key(cell: Cell) -> LadderKey:
    return cell.tag, cell.protocol, cell.arm


def _without_drafts(cell: Cell, frames: Sequence[CellFrame]) -> list[CellFrame]:
    """The cells of the same content and protocol that wrote something without speculation."""
    plain = (frame for frame in frames if frame.cell.speculative_config is None and not frame.empty)
    return [frame for frame in plain if _key(frame.cell)[:2] == _key(cell)[:2]]


def _rungs(frames: Sequence[CellFrame], asked: Asked) -> Iterator[Rung]:
    """Cells of one rate, whatever the launch."""
    found: dict[tuple[LadderKey, float], list[CellFrame]] = defaultdict(list)
    for frame in frames:
        cell = frame.cell
        if cell.arrivals is not None:
            found[_key(cell), cell.arrivals.rate_per_s].append(frame)
    for of_rate in found.values():
        cells = tuple(open_cells(of_rate, asked))
        if cells:
            yield Rung(cells)


def _place(rung: Rung, place: Place) -> tuple[object, ...]:
    cell = rung.cell
    return place(cell.tag), place(cell.protocol), cell.speculative_config is not None, cell.arm


def _rising(ladder: Sequence[Measured]) -> list[Measured]:
    return sorted(ladder, key=lambda measured: measured[1].rate_per_s)


def _is_trace(ladder: Sequence[Measured]) -> bool:
    """A trace has the one rate it has: there is nothing to climb."""
    return ladder[0][0].arrivals.kind == TRACE


def _goodput(key: LadderKey, ladder: Sequence[Measured], asked: Asked) -> GoodputFigures:
    return goodput_figures(ladder, asked.share(key[1]))


def _gains(
    ladders: Mapping[LadderKey, Sequence[Measured]], goodputs: Mapping[LadderKey, GoodputFigures]
) -> Iterator[GoodputGain]:
    """Every arm with speculation against the arm without."""
    off_arm = next((k[2] for k, ladder in ladders.items() if ladder[0][0].cell.speculative_config is None), None)
    for key, on in goodputs.items():
        off_key = (key[0], key[1], off_arm or "")
        if ladders[key][0][0].cell.speculative_config and off_key in goodputs:
            rungs = [[rung for rung, _ in relied_on(ladders[k])] for k in (key, off_key)]
            yield goodput_gain(on, goodputs[off_key], (rungs[0], rungs[1]))


def _notes(frames: Sequence[CellFrame], ladders: Mapping[LadderKey, Sequence[Measured]]) -> Iterator[str]:
    nobody = sum(not frame.data.requests.num_rows for frame in frames)
    if nobody:
        yield f"{nobody} open-loop cells had no request that was due: the rate is too low for the window."
    cells = [cell for ladder in ladders.values() for rung, _ in ladder for cell in rung.cells]
    waiting = sum(not cell.judged for cell in cells)
    if waiting:
        yield (
            f"Texts of {waiting} open-loop cells have not been judged yet, so what was good is not known: "
            "'specprof run' judges them when everything is measured."
        )
    for ladder in ladders.values():
        yield from _not_climbed([rung for rung, _ in ladder])
    unjudged = sum(cell.num_unjudged for cell in cells)
    if unjudged:
        yield f"{unjudged} answers that were on time could not be judged by their check; they do not count as good."


def _not_climbed(ladder: Sequence[Rung]) -> Iterator[str]:
    """What a reader must know of rates that only some of the blocks have reached."""
    rising = sorted(ladder, key=lambda rung: rung.arrivals.rate_per_s)
    for rung, whole in zip(rising, with_collapsed(ladder), strict=True):
        missing = len(whole.cells) - len(rung.cells)
        if missing:
            yield (
                f"{rung.cell.arm} at {rung.arrivals.rate_per_s:g} req/s: {missing} of {len(whole.cells)} launches had "
                "collapsed at a lower rate and are not in its figures; in the goodput they count as they did there."
            )
