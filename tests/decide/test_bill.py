"""Prices of options: given ones by hand, measured ones against what the committed study says of itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from specprof.analyse.cost import Repayment, Standing
from specprof.analyse.results import Figure, GainFigures, StudyFigures
from specprof.decide.bill import Bill, make_bill
from specprof.decide.conclude import conclude
from specprof.errors import InputError
from specprof.publish.cost_sentences import payback_sentences, reversal_sentences
from specprof.store import Store
from specprof.study.cost_file import parse_cost_file
from tests.running import ROOT

OFF, ON = "code/forced/off/8", "code/forced/ngram-k4/8"


def bill(*options: str, payback: str = "", folder: Path = ROOT) -> Bill:
    listed = "\n".join(f"  - {{{option}}}" for option in options)
    section = f"payback: {{{payback}}}" if payback else ""
    return make_bill(parse_cost_file(f"cost: test\noptions:\n{listed}\n{section}\n", "costs.yaml", folder))


def demo(name: str, cell: str, more: str = "") -> str:
    return f"name: {name}, cost_per_hour: 2, study: results/demo, cell: {cell}{more}"


def trained(name: str, arm: str, more: str = "") -> str:
    """Four streams of a study of three launches an arm, where drafts lose for certain: 0.82 [0.71, 0.96]."""
    return f"name: {name}, cost_per_hour: 2, study: results/trained-k2, cell: code/forced/{arm}/4{more}"


@cache
def figures_of(study: str) -> StudyFigures:
    return conclude(Store.existing(ROOT / "results" / study)).figures


def demo_figures() -> StudyFigures:
    return figures_of("demo")


def gain_of(study: str, concurrency: int) -> GainFigures:
    (found,) = (
        gain
        for gain in figures_of(study).gains
        if (gain.tag, gain.protocol, gain.concurrency) == ("code", "forced", concurrency)
    )
    return found


# -- given figures, by hand -------------------------------------------------------------------------------------------


def test_an_idle_hour_is_paid_too():
    """Half the hours busy: twice the price, and twice the output to tie with one that never rests."""
    told = bill(
        "name: busy, cost_per_hour: 36, throughput_tok_s: 1000",
        "name: idle, cost_per_hour: 36, throughput_tok_s: 1000, utilisation: 0.5",
    )
    assert [option.cost_per_million.value for option in told.options] == pytest.approx([10, 20])
    idle = told.break_evens[1]
    assert (idle.effective_throughput_tok_s.value, idle.cost_change.value) == pytest.approx((2000, 1.0))


def test_the_share_follows_where_raw_and_effective_output_are_given():
    (option,) = bill("name: A, cost_per_hour: 36, throughput_tok_s: 1000, effective_throughput_tok_s: 800").options
    assert option.effective_share is not None
    assert option.effective_share.figure.value == pytest.approx(0.8)
    assert option.cost_per_million.value == pytest.approx(12.5)
    assert "every token counted" not in " ".join(option.notes)


def test_an_option_of_unknown_raw_output_has_no_raw_price_and_turns_no_order():
    told = bill(
        "name: A, cost_per_hour: 36, throughput_tok_s: 1000",
        "name: B, cost_per_hour: 36, effective_throughput_tok_s: 2000",
    )
    assert (told.ranking_raw, told.ranking_effective) == (("A",), ("B", "A"))
    assert told.options[1].raw_cost_per_million is None
    assert told.break_evens[1].effective_share is None
    assert not told.reversals


def test_one_option_alone_is_priced_and_compared_with_nothing():
    told = bill("name: A, cost_per_hour: 36, throughput_tok_s: 1000")
    assert told.options[0].cost_per_million.value == pytest.approx(10)
    assert "every token counted: no latency or quality target was applied" in told.options[0].notes
    assert not told.break_evens


def test_every_pair_that_turns_is_told_those_of_the_cheapest_first():
    """Raw prices 10, 5, 4; effective ones 10, 12.5, 16: the order turns round altogether."""
    told = bill(
        "name: A, cost_per_hour: 36, throughput_tok_s: 1000, effective_share: 1",
        "name: B, cost_per_hour: 18, throughput_tok_s: 1000, effective_share: 0.4",
        "name: C, cost_per_hour: 14.4, throughput_tok_s: 1000, effective_share: 0.25",
    )
    assert (told.ranking_raw, told.ranking_effective) == (("C", "B", "A"), ("A", "B", "C"))
    pairs = [(r.cheaper_raw, r.cheaper_effective) for r in told.reversals]
    assert pairs == [("B", "A"), ("C", "A"), ("C", "B")]
    assert told.reversals[0].raw_cost_change.value == pytest.approx(-0.5)
    assert told.reversals[0].cost_change.value == pytest.approx(0.25)
    assert all(reversal.sure for reversal in told.reversals)


def test_payback_is_one_off_over_running_saving_less_extra_upkeep():
    """3.6e9 tokens at 1,000 tok/s are 1,000 hours: 100,000 against 50,000 a month, 10,000 of it eaten by upkeep."""
    told = bill(
        "name: now, cost_per_hour: 100, throughput_tok_s: 1000, upkeep_per_period: 2000",
        "name: then, cost_per_hour: 50, throughput_tok_s: 1000, one_off: 80000, upkeep_per_period: 12000",
        payback="baseline: now, period: month, effective_tokens_per_period: 3.6e9",
    ).payback
    assert told is not None
    assert (told.baseline_paid_hours.value, told.baseline_running_cost.value) == pytest.approx((1000, 100_000))
    (option,) = told.options
    assert option.extra_upkeep == 10_000
    assert (option.net_saving.value, option.periods.value) == pytest.approx((40_000, 2.0))
    assert option.repayment is Repayment.PAYS_BACK


# -- measured figures -------------------------------------------------------------------------------------------------


def test_a_measured_price_carries_the_interval_of_its_cell_and_names_it():
    (option,) = bill(demo("plain", OFF, ", effective_share: 0.5")).options
    (cell,) = (
        c for c in demo_figures().cells if (c.tag, c.protocol, c.arm, c.concurrency) == ("code", "forced", "off", 8)
    )
    x = cell.throughput_tok_s
    assert x.value and x.low and x.high
    price = option.cost_per_million
    expected = [2 / (0.5 * speed * 3600) * 1e6 for speed in (x.value, x.high, x.low)]
    assert [price.value, price.low, price.high] == pytest.approx(expected)
    assert option.throughput_tok_s is not None
    assert option.throughput_tok_s.source == "measured: results/demo code/forced/off/8"
    assert option.effective_share is not None
    assert option.effective_share.source == option.cost_per_hour.source == "given"
    assert any(note.startswith("gate 4 (sum of rates): ") for note in option.notes)
    assert any(note.startswith("forced length: ") for note in option.notes)


def test_without_a_share_every_token_counts_and_the_bill_says_so():
    (option,) = bill(demo("plain", OFF)).options
    assert option.cost_per_million == option.raw_cost_per_million
    assert "every token counted: no latency or quality target was applied" in option.notes


def test_two_arms_of_one_study_are_compared_as_the_study_compares_them():
    """At one price an hour the price per token is 1 / speculation gain, with the paired interval of the gain."""
    told = bill(trained("plain", "off"), trained("drafts", "trained")).break_evens[1]
    gain = gain_of("trained-k2", 4).speculation_gain
    assert gain.value and gain.low and gain.high
    change = told.cost_change
    expected = [1 / g - 1 for g in (gain.value, gain.high, gain.low)]
    assert [change.value, change.low, change.high] == pytest.approx(expected)
    assert told.standing is Standing.DEARER


def test_one_launch_of_each_arm_is_shown_and_decides_nothing():
    """The whole interval says dearer, and holds nothing of how another launch would have differed."""
    told = bill(demo("plain", OFF), demo("drafts", ON))
    change = told.break_evens[1].cost_change
    assert change.low and change.low > 0
    assert {tie.standing for tie in told.break_evens} == {Standing.UNDECIDED}
    for option in told.options:
        assert any(note.startswith("one launch: the interval holds prompts only") for note in option.notes)
    assert not any("one launch" in note for note in bill(trained("plain", "off")).options[0].notes)


def test_one_launch_on_one_side_is_enough_to_leave_it_open():
    """Of two studies, one of three launches: at ten times the price an hour the other is dearer by any interval."""
    dear = demo("once", OFF).replace("cost_per_hour: 2", "cost_per_hour: 20")
    told = bill(dear, trained("thrice", "off"))
    assert {tie.standing for tie in told.break_evens} == {Standing.UNDECIDED}
    given = bill("name: given, cost_per_hour: 20, throughput_tok_s: 10", trained("thrice", "off"))
    assert {tie.standing for tie in given.break_evens} == {Standing.DEARER, Standing.CHEAPER}


def test_a_reversal_on_one_launch_is_not_sure():
    """The price of the drafts is 1.19 [1.04, 1.36] of the other's a raw token; half of that one's tokens count."""
    told = bill(demo("plain", OFF, ", effective_share: 0.5"), demo("drafts", ON, ", effective_share: 1"))
    (reversal,) = told.reversals
    assert reversal.raw_cost_change.high is not None
    assert reversal.cost_change.low is not None
    assert reversal.raw_cost_change.high < 0 < reversal.cost_change.low
    assert not reversal.sure
    assert "one launch stands behind it, so this is undecided" in "".join(reversal_sentences(told))


def test_where_the_gain_is_undecided_so_is_the_price():
    gain = gain_of("demo", 4).speculation_gain
    assert gain.low and gain.high and gain.low < 1 < gain.high
    told = bill(demo("plain", "code/forced/off/4"), demo("drafts", "code/forced/ngram-k4/4"))
    assert {tie.standing for tie in told.break_evens} == {Standing.UNDECIDED}


def test_a_reversal_within_the_noise_is_not_sure():
    """The gain at four streams is 0.89 [0.77, 1.04]; a share of 0.85 for the other arm turns the estimates round."""
    told = bill(
        demo("plain", "code/forced/off/4", ", effective_share: 0.85"),
        demo("drafts", "code/forced/ngram-k4/4", ", effective_share: 1"),
    )
    (reversal,) = told.reversals
    assert (reversal.cheaper_raw, reversal.cheaper_effective) == ("plain", "drafts")
    assert not reversal.sure


def test_a_cell_against_itself_at_two_prices_leaves_nothing_to_chance():
    told = bill(demo("dear", OFF), demo("cheap", OFF).replace("cost_per_hour: 2", "cost_per_hour: 1"))
    assert told.break_evens[0].cost_change == Figure(1.0, 1.0, 1.0)
    assert told.break_evens[0].standing is Standing.DEARER


def test_a_measured_saving_makes_an_interval_of_periods():
    told = bill(
        "name: now, cost_per_hour: 4, throughput_tok_s: 75",
        trained("measured", "off", ", one_off: 1000"),
        payback="baseline: now, period: month, effective_tokens_per_period: 1e9",
    ).payback
    assert told is not None
    (option,) = told.options
    assert option.repayment is Repayment.PAYS_BACK
    low, value, high = option.periods.low, option.periods.value, option.periods.high
    assert low and value and high
    assert low < value < high


def test_a_saving_that_rests_on_one_launch_is_not_promised():
    told = bill(
        "name: now, cost_per_hour: 4, throughput_tok_s: 75",
        demo("measured", OFF, ", one_off: 1000"),
        payback="baseline: now, period: month, effective_tokens_per_period: 1e9",
    )
    assert told.payback is not None
    (option,) = told.payback.options
    assert option.net_saving.low is not None
    assert option.net_saving.low > 0
    assert option.repayment is Repayment.UNDECIDED
    assert list(payback_sentences(told))[1].endswith("rests on one launch")


# -- what is refused --------------------------------------------------------------------------------------------------


def refusal(*options: str, folder: Path = ROOT) -> str:
    with pytest.raises(InputError) as problem:
        bill(*options, folder=folder)
    return str(problem.value)


def test_a_cell_that_a_gate_forbids_is_refused_with_gate_and_remedy():
    forbidden = "zh-prose/unpenalised/ngram-k4/8"
    told = refusal(demo("looping", forbidden))
    assert told.startswith(
        f"costs.yaml:3: options.0.cell: {forbidden} of results/demo is not fit to be priced. Gate 7 ("
    )
    (cell,) = (c for c in demo_figures().cells if (c.protocol, c.arm) == ("unpenalised", "ngram-k4"))
    (gate,) = (g for g in cell.gates if g.gate == 7)
    assert gate.evidence.rstrip(".") in told
    assert told.endswith(gate.remedy)


def test_a_cell_that_was_not_measured_is_refused_with_the_nearest():
    told = refusal(demo("plain", "code/forced/of/8"))
    assert "costs.yaml:3: options.0.cell: 'code/forced/of/8' is no measured cell" in told
    assert "The nearest in results/demo is 'code/forced/off/8'." in told


def test_a_folder_that_holds_no_study_is_refused_with_its_line(tmp_path: Path):
    (tmp_path / "results" / "demo").mkdir(parents=True)
    told = refusal(demo("plain", OFF), folder=tmp_path)
    assert told.startswith("costs.yaml:3: options.0.study: ")
    assert "is not a results folder" in told
