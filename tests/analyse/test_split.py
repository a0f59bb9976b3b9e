"""Where a gain comes from: tokens per step, the duration of a step, and how many streams wrote. Times are planted."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import mean, stdev
from typing import Any

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import CellFigures, Figure, GainFigures, Severity
from specprof.analyse.study import analyse
from specprof.columns import CellData
from tests.factory import NGRAM, later, make_cell, make_data, make_request, make_requests

ON = {"arm": "on", "speculative_config": NGRAM}
STEP_S = 0.04  # of a step without a draft
LENGTH = 65  # tokens: one in the first chunk, and 64 that take 64 steps, or 32 of two tokens each
T_2, T_3 = 4.3027, 3.1824  # 97.5% quantiles of Student's t, from any table


def plain(block: int = 0, **changes: Any) -> CellData:
    """A cell without speculation."""
    cell = make_cell(max_tokens=LENGTH, block=block, **changes)
    return make_data(cell, make_requests(cell, step_s=STEP_S))


def drafted(step_s: float, block: int = 0, ttft_s: float = 0.1, **changes: Any) -> CellData:
    """The same with drafts, of which every step accepts one token."""
    cell = make_cell(max_tokens=LENGTH, block=block, **ON, **changes)
    return make_data(cell, make_requests(cell, accepted=(1,), step_s=step_s, ttft_s=ttft_s))


def in_turn(steps_s: Sequence[float], block: int = 0, accepted: Sequence[int] | None = None) -> CellData:
    """One stream that writes one text after the other, each with steps of its own duration."""
    cell = make_cell(
        max_tokens=LENGTH, block=block, num_prompts=len(steps_s), concurrency=1, **(ON if accepted else {})
    )
    requests, free_at = [], 0.0
    for name, step_s in zip(cell.prompt_ids, steps_s, strict=True):
        request = make_request(name, num_tokens=LENGTH, accepted=accepted, step_s=step_s)
        requests.append(later(request, free_at))
        free_at += (request.done_ns - request.sent_ns) / 1e9
    return make_data(cell, requests)


def figures(*cells: CellData) -> tuple[dict[str, CellFigures], GainFigures]:
    shown = analyse("planted", Evidence(cells), {})
    (gain,) = shown.gains
    return {cell.arm: cell for cell in shown.cells}, gain


# -- step time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttft_s", [0.1, 2.0])
def test_the_step_time_is_that_of_a_step_however_many_streams_wrote(ttft_s: float) -> None:
    """Steps of 50 ms against 40 ms. A long wait for the first token lowers throughput and is no part of a step."""
    _, gain = figures(plain(), drafted(0.05, ttft_s=ttft_s))
    assert gain.step_time_ratio.value == pytest.approx(0.05 / STEP_S, rel=1e-6)


def test_the_parts_of_a_gain_multiply_to_it() -> None:
    """Gain = tokens per step / step time × effective concurrency, on / off. After the first chunk each step wrote 2."""
    cells, gain = figures(plain(), drafted(0.05, ttft_s=2.0))
    writing = (cells["on"].effective_concurrency.value or 0) / (cells["off"].effective_concurrency.value or 1)
    assert writing < 0.6
    assert gain.speculation_gain.value == pytest.approx(2 / (gain.step_time_ratio.value or 0) * writing, rel=1e-6)
    assert gain.mediated_share.value == pytest.approx(log(2) / log(gain.speculation_gain.value or 0), rel=1e-6)


def test_the_interval_of_the_step_time_holds_the_launches() -> None:
    slower = (1.27, 1.22, 1.26, 1.24)
    cells = [cell for n, factor in enumerate(slower) for cell in (plain(n), drafted(STEP_S * factor, n))]
    found = figures(*cells)[1].step_time_ratio
    logs = [log(factor) for factor in slower]
    reach = T_3 * stdev(logs) / len(logs) ** 0.5
    assert (found.value, found.low, found.high) == pytest.approx(
        (exp(mean(logs)), exp(mean(logs) - reach), exp(mean(logs) + reach)), rel=1e-4
    )


def test_launches_without_a_counterpart_are_left_out() -> None:
    """A third launch with drafts on a machine gone twice as slow, where off was not measured."""
    cells = [plain(0), drafted(0.05, 0), plain(1), drafted(0.05, 1), drafted(0.10, 2)]
    assert figures(*cells)[1].step_time_ratio.value == pytest.approx(1.25, rel=1e-6)


def test_the_interval_of_the_step_time_holds_the_prompts() -> None:
    """Two launches that are exactly alike, and three prompts that a draft slows by different factors."""
    slower = (1.2, 1.25, 1.3)
    cells = [
        cell
        for block in (0, 1)
        for cell in (in_turn([STEP_S] * 3, block), in_turn([STEP_S * factor for factor in slower], block, (1,)))
    ]
    found = figures(*cells)[1].step_time_ratio
    reach = T_2 * stdev(map(log, slower)) / len(slower) ** 0.5
    assert found.value == pytest.approx(mean(slower), rel=1e-6)
    assert (found.low, found.high) == pytest.approx((mean(slower) * exp(-reach), mean(slower) * exp(reach)), rel=1e-4)


def test_of_one_launch_the_uneven_steps_are_the_least_that_is_not_known() -> None:
    """The same in one launch: steps that scatter say that it, too, may have run otherwise."""
    found = figures(in_turn([STEP_S] * 3), in_turn([STEP_S * factor for factor in (1.2, 1.25, 1.3)], 0, (1,)))[1]
    least = T_2 * stdev(map(log, (1.2, 1.25, 1.3))) / 3**0.5
    assert found.step_time_ratio.high is not None
    assert log(found.step_time_ratio.high / 1.25) > least * 1.001


def test_one_prompt_leaves_no_interval_of_the_step_time() -> None:
    cells = [cell for n in (0, 1) for cell in (in_turn([STEP_S], n), in_turn([0.05], n, (1,)))]
    assert figures(*cells)[1].step_time_ratio == Figure(pytest.approx(1.25, rel=1e-6))


# -- the residual -----------------------------------------------------------------------------------------------------


def test_one_stream_leaves_nothing_over_however_unlike_its_texts_are() -> None:
    """The account is one of means: a median would see only the middle text, and leave over what the slow one cost."""
    _, gain = figures(in_turn([STEP_S] * 3), in_turn([0.02, 0.03, 0.30], 0, (1,)))
    assert gain.residual.value == pytest.approx(0, abs=1e-9)


def beside_each_other(step_s: float, accepted: Sequence[int] | None = None) -> CellData:
    """Two streams, one text each; the second accepts nothing where the first accepts as told."""
    cell = make_cell(max_tokens=LENGTH, num_prompts=2, concurrency=2, **(ON if accepted else {}))
    of_each = (accepted, (0,) if accepted else None)
    texts = zip(cell.prompt_ids, of_each, strict=True)
    return make_data(
        cell,
        [
            make_request(name, num_tokens=LENGTH, accepted=held, step_s=step_s, stream=stream)
            for stream, (name, held) in enumerate(texts)
        ],
    )


def test_streams_that_stood_idle_are_left_over_and_are_a_caution() -> None:
    """One text takes 64 steps and the other 32: 3.3 s and 1.7 s, so that 5.0 / 3.3 streams had work, of two."""
    cells, gain = figures(beside_each_other(STEP_S), beside_each_other(0.05, (1,)))
    left_over = 5.0 / 3.3 / 2 - 1
    assert gain.residual.value == pytest.approx(left_over, rel=1e-6)
    (finding,) = [gate for gate in cells["on"].gates if gate.name == "unexplained gain"]
    assert (finding.gate, finding.severity) == (4, Severity.CAUTION)
    assert f"{-left_over:.0%} below" in finding.evidence
    assert not [gate for gate in cells["off"].gates if gate.name == "unexplained gain"]


@pytest.mark.parametrize(("accepted", "told"), [((0,) * 9 + (1,), False), ((0,) * 7 + (1,), True)])
def test_below_five_per_cent_a_residual_is_no_caution(accepted: Sequence[int], told: bool) -> None:
    """A tenth of the steps with two tokens saves 5 or 6 of 64 steps: idle for under 5% of two streams' time. An eighth
    saves 7: the first text takes 0.1 + 57 × 0.05 = 2.95 s beside 3.3 s, which is 5.3%.
    """
    cells, gain = figures(beside_each_other(STEP_S), beside_each_other(0.05, accepted))
    assert (abs(gain.residual.value or 0) > 0.05) is told
    assert any(gate.name == "unexplained gain" for gate in cells["on"].gates) is told
