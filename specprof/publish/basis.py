"""On how many engine launches, and how many prompts or requests, a published number rests (METHOD 5).

An interval of one launch holds prompts alone, since nothing shows how another launch would differ; a ratio of one
launch per arm is a first look. Few launches forbid no publication: the number says how few they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specprof.analyse.results import CellFigures, GainFigures
from specprof.analyse.service_results import RungFigures
from specprof.decide.verdict import PUBLISHABLE_BLOCKS

FIRST_LOOK_BLOCKS = 1  # as many launches of an arm show nothing of how another would differ

_OF_ONE_LAUNCH = {"prompts": "the interval holds prompts only", "requests": "the interval holds requests only"}


@dataclass(frozen=True, slots=True)
class Basis:
    """What a number rests on. `num_asked`: prompts, or requests of an open loop; 0 in a card that does not tell."""

    num_launches: int
    num_asked: int
    asked: str = "prompts"
    ratio: bool = False

    @classmethod
    def of_cell(cls, cell: CellFigures) -> Basis:
        """What a cell's own figures rest on."""
        return cls(cell.num_launches, cell.num_prompts)

    @classmethod
    def of_gain(cls, metric: str, gain: GainFigures, parts: Iterable[CellFigures]) -> Basis:
        """What one of the gains of a cell rests on. `parts`: the cells they are all made of."""
        shared = (gain.num_blocks, gain.num_prompts)
        of_arms = [(part.arm, (part.num_launches, part.num_prompts)) for part in parts]
        made_of = {
            "speculation_gain": [shared],
            "batching_gain": [counts for arm, counts in of_arms if arm == gain.arm],
            "interaction": [shared, *(counts for _, counts in of_arms)],
        }
        launches, prompts = map(min, zip(*made_of[metric], strict=True))
        return cls(launches, prompts, ratio=True)

    @classmethod
    def of_rungs(cls, rungs: Sequence[RungFigures], *, ratio: bool = False) -> Basis:
        """What a number of open loops rests on: the rung with the fewest launches, and every request that was due."""
        launches = min(rung.num_launches for rung in rungs)
        return cls(launches, sum(rung.fates.offered for rung in rungs), "requests", ratio)

    @property
    def words(self) -> str:
        """`4 launches, 32 prompts`; `first look: 1 launch (the interval holds prompts only), 2 prompts`."""
        return ", ".join(part for part in (self.launches, self.sample) if part)

    @property
    def launches(self) -> str:
        """How many launches, and what to think of a ratio of few."""
        if self.num_launches <= FIRST_LOOK_BLOCKS:
            holds = _OF_ONE_LAUNCH[self.asked]
            return f"first look: 1 launch ({holds})" if self.ratio else f"1 launch ({holds})"
        if self._few:
            return f"{self.num_launches} launches (fewer than {PUBLISHABLE_BLOCKS})"
        return f"{self.num_launches} launches"

    @property
    def sample(self) -> str:
        """How many prompts or requests, where that is known."""
        if not self.num_asked:
            return ""
        return f"1 {self.asked.removesuffix('s')}" if self.num_asked == 1 else f"{self.num_asked:,} {self.asked}"

    @property
    def mark(self) -> str:
        """What a ratio of few launches is never shown without: `first look`, `2 launches`; empty for other numbers."""
        if not self._few:
            return ""
        return "first look" if self.num_launches <= FIRST_LOOK_BLOCKS else f"{self.num_launches} launches"

    @property
    def _few(self) -> bool:
        return self.ratio and self.num_launches < PUBLISHABLE_BLOCKS
