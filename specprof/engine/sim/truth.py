"""What a content's acceptance really is over all prompts that could have been drawn: what an interval must cover.

Found by integrating over the prompts' luck on a fine grid, never by formulas of `analyse`. It holds for forced text
that does not loop. Loops and match shares are for the test at hand to work out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specprof.engine.sim.machine import Content

_GRID = np.linspace(-6.0, 6.0, 1201)  # standard normal, fine enough for five digits


@dataclass(frozen=True, slots=True)
class AcceptanceTruth:
    """Population values, bonus token included in the lengths.

    `acceptance_length` weighs every verification step alike (an easily guessed prompt needs fewer steps);
    `mean_of_prompts` weighs every prompt alike. `survival[j]` is the share of steps that accept at least j+1 drafts.
    """

    acceptance_length: float
    mean_of_prompts: float
    survival: tuple[float, ...]


def acceptance_truth(
    content: Content, num_draft_tokens: int, output_tokens: int, *, acceptance_shift: float = 0.0
) -> AcceptanceTruth:
    """The truth for K draft tokens and texts of this length; `acceptance_shift` is the drafter's."""
    weights = np.exp(-(_GRID**2) / 2.0)
    weights /= weights.sum()
    curve = np.array(content.acceptance_at(num_draft_tokens))
    with np.errstate(divide="ignore"):
        base_odds = np.log(curve) - np.log1p(-curve) + acceptance_shift
    num_steps = np.zeros_like(_GRID)
    survivors = np.zeros((len(_GRID), num_draft_tokens))
    for position in range(1, output_tokens):
        drift = content.drift_per_100_tokens * position / 100
        odds = base_odds[None, :] + content.prompt_spread * _GRID[:, None] + drift
        survival = np.cumprod(1.0 / (1.0 + np.exp(-odds)), axis=1)
        # The step that covers this token delivers so many, so each token is this share of a step.
        share_of_step = 1.0 / (1.0 + survival.sum(axis=1))
        num_steps += share_of_step
        survivors += survival * share_of_step[:, None]
        if content.drift_per_100_tokens == 0.0:
            break  # every position is alike
    all_steps = weights @ num_steps
    pooled = weights @ survivors / all_steps
    return AcceptanceTruth(
        acceptance_length=float(1.0 + pooled.sum()),
        mean_of_prompts=float(1.0 + weights @ (survivors.sum(axis=1) / num_steps)),
        survival=tuple(float(share) for share in pooled),
    )
