"""What content does (METHOD 4): which cells the two cuts are made of, and the intervals of ratios between contents."""

from __future__ import annotations

from itertools import cycle
from math import exp, log

import numpy as np
import pytest
from scipy import stats

from specprof.analyse.content import content_effects, two_cuts
from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Figure
from specprof.records import Sampling, Stop
from tests.factory import NGRAM, make_cell, make_data, make_request, make_running_cell

NATURAL = {"protocol": "natural", "stop": Stop.NATURAL}
GUIDED = {"protocol": "guided", "stop": Stop.NATURAL, "guided": True}


# -- which cells the cuts lie between -------------------------------------------------------------------------------


def test_the_stop_rule_is_cut_between_cells_that_differ_by_nothing_else():
    """[seed 000] 359.3 / 171.2 = 2.10. A guided protocol, though it comes first by name, changes more than the stop."""
    cells = [
        make_running_cell(90.0, tag="json", **GUIDED),
        make_running_cell(171.2, tag="json", **NATURAL),
        make_running_cell(359.3, tag="json"),
        make_running_cell(606.1, tag="code"),
    ]
    (cut,) = two_cuts(Evidence(cells))
    assert cut.natural_protocol == "natural"
    assert cut.stop_rule.value == pytest.approx(2.10, abs=0.005)


@pytest.mark.parametrize(
    "change",
    [{"sampling": Sampling(repetition_penalty=1.2)}, {"chat": True}, {"prompt_ids": ("a", "b", "c", "d")}],
    ids=["sampling", "chat", "prompts"],
)
def test_a_natural_figure_of_other_texts_has_no_cut(change):
    cells = [
        make_running_cell(100.0, tag="json", **NATURAL, **change),
        make_running_cell(200.0, tag="json"),
        make_running_cell(400.0),
    ]
    assert list(two_cuts(Evidence(cells))) == []


def test_how_a_text_is_forced_is_part_of_the_stop_rule():
    cells = [make_running_cell(100.0, tag="json", **NATURAL), make_running_cell(200.0, tag="json", mask_eos=True)]
    (cut,) = two_cuts(Evidence([*cells, make_running_cell(400.0, mask_eos=True)]))
    assert cut.stop_rule.value == pytest.approx(2)


@pytest.mark.parametrize(
    "change",
    [{"max_tokens": 512}, {"sampling": Sampling(repetition_penalty=1.2)}, {"mask_eos": True}, {"chat": True}],
    ids=["length", "sampling", "mask", "chat"],
)
def test_another_content_that_was_forced_another_way_is_no_second_cut(change):
    """The content would be said to bring what the length or the sampling brings."""
    cells = [
        make_running_cell(100.0, tag="json", **NATURAL),
        make_running_cell(200.0, tag="json", protocol="forced-64"),
        make_running_cell(400.0, protocol="forced-512", **change),
    ]
    assert list(two_cuts(Evidence(cells))) == []


def test_the_other_content_may_be_forced_alike_under_another_name():
    """As in configs/seed-machine.yaml: questions under one protocol, code under another of the same rule and length."""
    cells = [
        make_running_cell(100.0, tag="zh-qa", **NATURAL),
        make_running_cell(200.0, tag="zh-qa", protocol="forced-questions"),
        make_running_cell(400.0),
    ]
    (cut,) = two_cuts(Evidence(cells))
    assert (cut.forced_protocol, cut.other_protocol) == ("forced-questions", "forced")


# -- the intervals of ratios between contents -----------------------------------------------------------------------

STEPS = (0.04, 0.05, 0.07, 0.06, 0.05)  # seconds a step takes, prompt by prompt


def one_by_one(tag, steps=STEPS, *, times=(1.0, 1.0), accepted=None, **changes):
    """One stream. Prompt i is read in 0.1 s and then takes `steps[i]` a step, all `times[block]` as long in a block."""
    for block, factor in enumerate(times):
        cell = make_cell(tag=tag, concurrency=1, num_prompts=len(steps), block=block, **changes)
        requests, at = [], 0.0
        for name, step, drafts in zip(cell.prompt_ids, steps, cycle(accepted or (None,))):
            timing = {"start_s": at, "ttft_s": 0.1 * factor, "step_s": step * factor}
            requests.append(make_request(name, accepted=drafts, **timing))
            at += 0.1 * factor + step * factor * (len(requests[-1].chunk_tokens) - 1)
        yield make_data(cell, requests)


def jackknifed(log_of):
    """Variance of a logarithm, each prompt left out in turn: (n - 1) / n · Σ of squares about their mean."""
    n = len(STEPS)
    left_out = np.array([log_of(np.delete(np.arange(n), i)) for i in range(n)])
    return (n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum())


def about(ratio, variance, degrees):
    """The 95% interval of a ratio whose logarithm has this variance."""
    reach = stats.t.ppf(0.975, degrees) * variance**0.5
    return pytest.approx((ratio, ratio * exp(-reach), ratio * exp(reach)), rel=1e-3)


def parts(figure):
    return figure.value, figure.low, figure.high


WELCH = 2 * (len(STEPS) - 1)  # degrees of freedom of two samples that vary alike


def test_throughputs_of_two_contents_differ_by_the_prompts_of_both():
    """Every prompt takes twice as long in prose. No prompt is in both, so nothing cancels: the variances add."""
    seconds = 0.1 + 63 * np.array(STEPS)
    variance = jackknifed(lambda rows: log(seconds[rows].sum()))
    (effect,) = content_effects(Evidence([*one_by_one("code"), *one_by_one("prose", times=(2.0, 2.0))]))
    assert parts(effect.throughput_ratio) == about(2.0, 2 * variance, WELCH)


def test_decode_shares_of_two_contents_differ_by_the_prompts_of_both():
    """Both read for the same 0.1 s, so that the prompt that writes faster writes for less of its time."""
    writing = 63 * np.array(STEPS)
    variance = jackknifed(lambda rows: log(writing[rows].sum() / (0.1 + writing[rows]).sum()))
    (effect,) = content_effects(Evidence([*one_by_one("code"), *one_by_one("prose")]))
    assert parts(effect.decode_share_ratio) == about(1.0, 2 * variance, WELCH)


def test_tokens_per_step_of_two_contents_differ_by_the_prompts_of_both():
    """Cluster delta method (METHOD 5) of Σ tokens / Σ steps; the 63 tokens after the first take so many steps."""
    drafts = ((2,), (0,), (6,), (0, 1), (2, 3))
    tokens, steps = np.full(5, 63.0), np.array([21, 63, 9, 42, 18])
    residuals = tokens - tokens.sum() / steps.sum() * steps
    variance = 5 / 4 * float((residuals**2).sum()) / float(tokens.sum()) ** 2
    told = {"accepted": drafts, "arm": "on", "speculative_config": NGRAM}
    (effect,) = content_effects(Evidence([*one_by_one("code", **told), *one_by_one("prose", **told)]))
    assert parts(effect.tokens_per_step_ratio) == about(1.0, 2 * variance, WELCH)


def test_without_speculation_every_step_writes_one_token_for_certain():
    (effect,) = content_effects(Evidence([*one_by_one("code"), *one_by_one("prose", times=(2.0, 2.0))]))
    assert parts(effect.tokens_per_step_ratio) == (1.0, 1.0, 1.0)


def test_launches_enter_as_what_the_contents_differ_by_from_block_to_block():
    """Prompts all alike. ln of the ratio is 0 in one block and ln 1.1 in the other: mean d / 2, variance d² / 4."""
    alike = (0.05,) * 5
    cells = [*one_by_one("code", alike, times=(1.0, 3.0)), *one_by_one("prose", alike, times=(1.0, 3.3))]
    (effect,) = content_effects(Evidence(cells))
    assert parts(effect.throughput_ratio) == about(1.1**0.5, log(1.1) ** 2 / 4, 1)


def test_one_launch_shows_nothing_of_order_so_that_it_is_added():
    """Two streams and five unequal prompts: which of them comes last decides the wall."""

    def reach(blocks):
        cells = []
        for tag in ("code", "prose"):
            for block in range(blocks):
                cell = make_cell(tag=tag, concurrency=2, num_prompts=4, block=block)
                starts = (0.0, 0.0, 2.62, 3.25)
                timed = zip(cell.prompt_ids, (0, 1, 0, 1), starts, (0.04, 0.05, 0.07, 0.06), strict=True)
                requests = [make_request(name, stream=s, start_s=at, step_s=step) for name, s, at, step in timed]
                cells.append(make_data(cell, requests))
        (effect,) = content_effects(Evidence(cells))
        return [log(figure.high) for figure in (effect.throughput_ratio, effect.decode_share_ratio)]

    assert [one > two for one, two in zip(reach(1), reach(2), strict=True)] == [True, True]


def test_one_prompt_of_a_content_leaves_no_interval():
    (effect,) = content_effects(Evidence([*one_by_one("code"), *one_by_one("prose", STEPS[:1])]))
    for figure in (effect.throughput_ratio, effect.tokens_per_step_ratio, effect.decode_share_ratio):
        assert figure == Figure(pytest.approx(figure.value))
        assert figure.value


def test_the_stop_rule_is_paired_by_prompt_and_the_content_is_not():
    """Natural texts take twice as long, prompt by prompt, so nothing is left to vary; prose has other prompts."""
    seconds = 0.1 + 63 * np.array(STEPS)
    variance = jackknifed(lambda rows: log(seconds[rows].sum()))
    cells = [*one_by_one("code", times=(4.0, 4.0), **NATURAL), *one_by_one("code", times=(2.0, 2.0))]
    (cut,) = two_cuts(Evidence([*cells, *one_by_one("prose")]))
    assert parts(cut.stop_rule) == pytest.approx((2.0, 2.0, 2.0), rel=1e-6)
    assert parts(cut.content) == about(2.0, 2 * variance, WELCH)
    assert parts(cut.whole) == about(4.0, 2 * variance, WELCH)
    for speed, factor in ((cut.natural_tok_s, 4), (cut.forced_tok_s, 2), (cut.other_tok_s, 1)):
        assert parts(speed) == about(5 * 64 / seconds.sum() / factor, variance, len(STEPS) - 1)
