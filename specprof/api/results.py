"""The results of a study as Python and notebooks read them: figures, and frames of cells, gains and requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.analyse.results import StudyFigures
from specprof.decide.conclude import Conclusion, conclude
from specprof.store import Store
from specprof.study.config import Study

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """What a study measured, and what it says. Made by `specprof.load`.

    `root` is its folder, `settings` the study as it was run, `figures` everything a report shows, each figure with its
    95% interval. The frames are made when they are first asked for; do not change them in place. They
    raise InputError where there is no pandas.
    """

    root: Path
    settings: Study
    figures: StudyFigures
    _conclusion: Conclusion

    def __repr__(self) -> str:
        return f"<Results of {self.root}: {len(self.figures.cells)} cells, {len(self.figures.gains)} gains>"

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per content, protocol, arm and N of a closed loop, all blocks together; see `frames.CELL_COLUMNS`."""
        from specprof.api import frames

        return frames.cells(self.figures.cells)

    @cached_property
    def gains(self) -> pd.DataFrame:
        """One row per content, protocol, arm with speculation and N; see `frames.GAIN_COLUMNS`."""
        from specprof.api import frames

        return frames.gains(self.figures.gains)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per measured request that ended as asked, of every cell; see `frames.REQUEST_COLUMNS`.

        Warm-ups are left out, and failures too: their share is in the gates of their cell.
        """
        from specprof.api import frames

        return frames.requests(self._conclusion.evidence.frames)

    def write_report(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write report.html, report.md, figures, card.json and card.md into `folder` (its own if None); the page."""
        from specprof.publish.report import write_report

        return write_report(
            self.figures, self.root if folder is None else Path(folder), samples=self._conclusion.samples
        )


def load(folder: str | os.PathLike[str]) -> Results:
    """Analyse a results folder (`results/demo`); needs no engine and no GPU, and changes nothing.

    Raises StoreError for a folder that is none, was written by another version, or was changed after it was sealed.
    """
    store = Store.existing(Path(folder))
    found = conclude(store)
    return Results(store.root, found.study, found.figures, found)
