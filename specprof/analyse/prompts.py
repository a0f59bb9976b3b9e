"""Values of requests gathered by their prompts: the unit that varies, however often a prompt was sent (METHOD 5)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprof.analyse.requests import Names
from specprof.analyse.stats import Array
from specprof.ragged import Indices


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of some requests, each once, as they first appear; request i is of `names[codes[i]]`."""

    names: Names
    codes: Indices

    @classmethod
    def of(cls, prompt_ids: Names) -> Prompts:
        """From the prompt of each request."""
        places = {name: place for place, name in enumerate(dict.fromkeys(prompt_ids))}
        return cls(
            np.array(list(places), dtype=object), np.array([places[name] for name in prompt_ids], dtype=np.int64)
        )

    def sums(self, values: NDArray[Any]) -> Array:
        """Of one value per request, over each prompt's requests in turn. Shape (prompts,)."""
        return np.asarray(np.bincount(self.codes, values, len(self.names)), dtype=float)

    def mean_logs(self, values: Array) -> dict[str, float]:
        """Mean ln of those values that are positive, by prompt; a prompt without any is left out."""
        positive = values > 0
        codes = self.codes[positive]
        logs = [log(value) for value in values[positive].tolist()]
        known = np.array(list(dict.fromkeys(codes.tolist())), dtype=np.int64)
        means = np.bincount(codes, logs)[known] / np.bincount(codes)[known]
        return dict(zip(self.names[known].tolist(), means.tolist(), strict=True))
