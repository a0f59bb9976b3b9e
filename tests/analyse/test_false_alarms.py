"""Clean studies end without a false alarm. What is false: `benchmarks/false_alarms.py`, which runs 200 of them."""

from __future__ import annotations

import pytest

from benchmarks.false_alarms import TAGS, false_alarms

SEEDS = range(1000, 1012)  # none that the gates were tried out on


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{TAGS[seed % len(TAGS)]}-{seed}")
def test_a_clean_study_raises_no_alarm(seed: int) -> None:
    assert false_alarms(seed) == []
