"""Gates between cells: changed output against an off/off control, drift, and a speed-up above its cause."""

from __future__ import annotations

import numpy as np
import pytest

from specprof.analyse.comparisons import (
    Divergence,
    Texts,
    above_cause,
    changed_output,
    divergence,
    drift,
    more_changed,
    off_control,
)
from specprof.analyse.results import Severity
from specprof.ragged import Ragged
from specprof.records import Role, Sampling, Stop
from tests.factory import NGRAM, distinct_tokens, later, make_cell, make_frame, make_request, make_requests

ON = {"arm": "ngram-k4", "speculative_config": NGRAM}


@pytest.mark.parametrize(
    ("mine", "theirs", "position"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 2, 3), (1, 9, 3), 1),
        ((1, 2), (1, 2, 3), None),  # the third may be what ended the text
        ((), (1,), None),
        ((1, 2), (1, 2, 3, 4), 2),  # of two, one surely is not
        ((1, 2, 3, 4), (1, 2), 2),
        ((1, 9), (1, 2, 3, 4), 1),
    ],
)
def test_the_first_difference_may_be_that_a_text_ends(mine, theirs, position):
    found = divergence(texts_of(a=mine), texts_of(a=theirs))
    assert (found.num_differ, found.first_position) == ((0, -1) if position is None else (1, position))


def test_texts_that_were_asked_to_end_elsewhere_are_compared_as_far_as_both_go():
    found = divergence(texts_of(a=(1, 2), b=(1, 2)), texts_of(a=(1, 2, 3, 4), b=(1, 9, 3, 4)), same_end=False)
    assert (found.num_differ, found.first_prompt, found.first_position) == (1, "b", 1)


def texts_of(**texts):
    return Texts(np.array(list(texts), dtype=object), Ragged.of(texts.values()))


def test_divergence_counts_texts_and_names_the_earliest_difference():
    found = divergence(texts_of(a=(1, 2, 3), b=(1, 2), c=(5,)), texts_of(a=(1, 2, 9), b=(7, 2), d=(5,)))
    assert (found.num_differ, found.num_compared) == (2, 2)
    assert (found.first_prompt, found.first_position) == ("b", 0)


def texts_frame(num_changed, at=10, **changes):
    """16 greedy texts, of which the first `num_changed` go another way from token `at` on."""
    cell = make_cell(num_prompts=16, **changes)
    requests = []
    for i, name in enumerate(cell.prompt_ids):
        ids = list(distinct_tokens(name, 64))
        if i < num_changed:
            ids[at:] = [token + 7 for token in ids[at:]]
        requests.append(make_request(name, token_ids=ids))
    return make_frame(cell, requests)


def eight(changed, off):
    return list(changed_output(changed, off))


def test_8_the_same_texts_are_no_finding():
    assert eight(texts_frame(0, **ON), [texts_frame(0), texts_frame(0, concurrency=1)]) == []


def test_8_texts_that_change_under_speculation_alone_are_a_fault():
    (gate,) = eight(texts_frame(8, **ON), [texts_frame(0), texts_frame(0, concurrency=1)])
    assert gate.severity is Severity.INVALID
    assert "8 of 16 greedy texts differ from the off arm's, first at token 11 of code-000" in gate.evidence
    assert "off/off control 0 of 16" in gate.evidence


def test_8_texts_that_end_early_under_speculation_are_changed():
    """The first 10 of 16 break off after 40 of 64 tokens, each a prefix of what the off arm wrote."""
    cell = make_cell(num_prompts=16, stop=Stop.NATURAL, **ON)
    lengths = [40 if i < 10 else 64 for i in range(16)]
    ends_early = [
        make_request(name, token_ids=list(distinct_tokens(name, 64))[:n], finish_reason="stop", num_tokens=n)
        for name, n in zip(cell.prompt_ids, lengths, strict=True)
    ]
    off = [texts_frame(0, stop=Stop.NATURAL), texts_frame(0, stop=Stop.NATURAL, concurrency=1)]
    (gate,) = eight(make_frame(cell, ends_early), off)
    assert gate.severity is Severity.INVALID
    assert "10 of 16 greedy texts differ from the off arm's, first at token 41 of code-000" in gate.evidence


def test_8_rounding_that_batch_size_brings_by_itself_is_no_fault():
    """Seen, bfloat16: 5 of 16 differ between on and off, 9 of 16 between N = 1 and N = 8 without speculation."""
    (gate,) = eight(texts_frame(5, **ON), [texts_frame(0), texts_frame(9, at=20, concurrency=1)])
    assert gate.severity is Severity.CAUTION
    assert "off/off control 9 of 16" in gate.evidence


def test_8_another_launch_at_the_same_n_is_a_control_too():
    (gate,) = eight(texts_frame(5, **ON), [texts_frame(0), texts_frame(9, at=20, block=1)])
    assert "off/off control 9 of 16" in gate.evidence


def test_8_without_a_control_nothing_is_concluded():
    (gate,) = eight(texts_frame(8, **ON), [texts_frame(0)])
    assert gate.severity is Severity.CAUTION
    assert "no off/off control" in gate.evidence
    assert "second N" in gate.remedy


def test_8_what_no_n_changes_by_itself_is_no_rounding():
    """Four of 16 texts change, and none at either N in any launch. One-sided Fisher test, by hand:

    against one N   (0 of 16)  C(16, 4) / C(32, 4) = 1820 / 35960  = 5.06%
    against two     (0 of 32)  C(16, 4) / C(48, 4) = 1820 / 194580 = 0.94%
    """
    off = [texts_frame(0, block=block, concurrency=n) for block in range(4) for n in (4, 1)]
    (gate,) = eight(texts_frame(4, **ON), off)
    assert gate.severity is Severity.INVALID
    assert "off/off control 0 of 32" in gate.evidence


def test_8_launches_at_one_n_repeat_each_other_and_count_once():
    """Three more launches at the same N are the same batches again: 5.06% as against one."""
    (gate,) = eight(texts_frame(4, **ON), [texts_frame(0, block=block) for block in range(4)])
    assert gate.severity is Severity.CAUTION
    assert "off/off control 0 of 16" in gate.evidence


def test_8_the_quiet_n_do_not_dilute_the_loud_one():
    """Seven texts change, and five by batch size alone: no fault (36%). Against 5 of 32, zeros counted in: 4.1%."""
    off = [texts_frame(0, block=block) for block in range(3)] + [texts_frame(5, block=1, concurrency=1)]
    (gate,) = eight(texts_frame(7, **ON), off)
    assert gate.severity is Severity.CAUTION
    assert "off/off control 5 of 16" in gate.evidence


@pytest.mark.parametrize("rate", [0.03, 0.06, 0.1, 0.15, 0.25, 0.4])
@pytest.mark.parametrize("loads", [2, 4])
@pytest.mark.parametrize("ties", [False, True], ids=["any prompt", "near ties alone"])
def test_8_noise_of_batch_sizes_is_called_a_fault_in_at_most_5_percent(rate, loads, ties):
    """Speculation is one more batch size. Each changes a prompt's text by chance, and its four launches repeat that;
    the cell's own N changes none. `ties`: half of the time, and only prompts where two tokens are nearly as likely.
    """
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(2000):
        chances = 0.5 * (rng.random(16) < 2 * rate) if ties else np.full(16, rate)
        mine, *others = (Divergence(int((rng.random(16) < chances).sum()), 16) for _ in range(loads))
        by_load = {8: [Divergence(0, 16)] * 3, **{n: [other] * 4 for n, other in enumerate(others)}}
        alarms += more_changed(mine, off_control(by_load))
    assert alarms / 2000 <= 0.05


def test_8_a_text_is_compared_once_however_many_blocks_there_are():
    off = [texts_frame(0, block=block) for block in range(4)]
    (gate,) = eight(texts_frame(3, **ON, block=2), off)
    assert gate.evidence.startswith("3 of 16")


def test_8_sampled_texts_may_differ():
    assert eight(texts_frame(8, **ON, sampling=Sampling(temperature=0.8)), [texts_frame(0)]) == []


def test_8_the_off_arm_is_not_compared_with_itself():
    assert eight(texts_frame(8), [texts_frame(0)]) == []


def sentinel(launch, step_s, at):
    cell = make_cell(role=Role.SENTINEL, protocol="sentinel")
    requests = make_requests(cell, step_s=step_s)
    return make_frame(cell, [later(request, 60 * at) for request in requests], launch=launch)


def test_6_a_machine_that_slowed_down_between_its_sentinels():
    found = drift([sentinel(3, 0.0530, at=9), sentinel(3, 0.05, at=1), make_frame(launch=3)])
    assert "5.5% slower after launch 3" in found[3].evidence  # 3.25 s before, 3.439 s after


def test_6_two_percent_is_steady_enough():
    assert drift([sentinel(0, 0.05, at=1), sentinel(0, 0.0509, at=9)]) == {}


def test_6_one_sentinel_tells_nothing():
    assert drift([sentinel(0, 0.05, at=1), sentinel(1, 0.08, at=9)]) == {}


def test_12_a_speed_up_above_the_tokens_per_step():
    gate = above_cause(2.5, 2.0)
    assert gate.severity is Severity.INVALID
    assert "2.50× the throughput from 2.00× the tokens per step" in gate.evidence
    assert above_cause(2.05, 2.0) is None
