"""Do the 95% intervals hold 95%? Five hundred simulated studies of known truth, through the whole analysis path.

`benchmarks/coverage.py` says how the worlds are made and where their truth comes from. Sixteen prompts are two waves of
eight streams, the hardest case there is: the last wave's tail is half of the wall.
"""

from __future__ import annotations

import pytest

from benchmarks.coverage import Design, coverage


@pytest.mark.study
@pytest.mark.timeout(1500)
def test_intervals_of_500_studies_cover_their_truth_92_to_98_percent_of_the_time() -> None:
    table = coverage(500, Design(blocks=4, prompts=16), draws=800)
    assert {row.name for row in table} == {
        *("AL", "speculation gain, N=1", "speculation gain, N=8"),
        *("batching gain, on", "batching gain, off", "interaction"),
    }
    outside = {row.name: row.covered for row in table if not 0.92 <= row.covered <= 0.98}
    assert not outside
