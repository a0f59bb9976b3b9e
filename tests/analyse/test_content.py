"""What content does (METHOD 4): which cells the two cuts are made of, and the intervals of ratios between contents."""

from __future__ import annotations

import pytest

from specprof.analyse.content import two_cuts
from specprof.analyse.evidence import Evidence
from specprof.records import Sampling, Stop
from tests.factory import make_running_cell

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
