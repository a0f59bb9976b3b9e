"""The cost file: what it accepts, and what it says of what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.errors import InputError
from specprof.study.cost_file import load_cost_file, parse_cost_file
from tests.running import ROOT

COSTS = """\
cost: two ways
currency: EUR
options:
  - name: A
    cost_per_hour: 100
    throughput_tok_s: 10000
    effective_share: 0.95
  - name: B
    cost_per_hour: 80
    study: results/demo
    cell: code/forced/off/8
    utilisation: 0.7
    one_off: 5000
    upkeep_per_period: 0
payback: {baseline: A, period: month, effective_tokens_per_period: 2e10}
"""


def changed(old: str, new: str) -> str:
    assert COSTS.count(old) == 1
    return COSTS.replace(old, new)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as problem:
        parse_cost_file(text, "costs.yaml", ROOT)
    assert problem.value.exit_code == 2
    return str(problem.value)


def test_every_key_is_read_as_written():
    file = parse_cost_file(COSTS, "costs.yaml", ROOT)
    a, b = file.spec.options
    assert (a.name, a.cost_per_hour, a.throughput_tok_s, a.effective_share) == ("A", 100, 10_000, 0.95)
    assert (b.cell, b.utilisation, b.one_off, b.upkeep_per_period) == ("code/forced/off/8", 0.7, 5000, 0)
    assert file.spec.payback is not None
    assert file.spec.payback.effective_tokens_per_period == 2e10  # YAML itself reads 2e10 as text
    assert file.study_folder(1) == ROOT / "results" / "demo"


def test_the_seeds_example_is_a_valid_file():
    assert [option.name for option in load_cost_file(ROOT / "configs" / "cost-reversal.yaml").spec.options] == [
        "A",
        "B",
    ]


def test_a_place_is_named_by_file_line_and_key():
    file = parse_cost_file(COSTS, "costs.yaml", ROOT)
    assert file.where("options", 1, "cell") == "costs.yaml:11: options.1.cell"


# -- what, where, and what to write instead ---------------------------------------------------------------------------

NUMBERS = {
    "0": "must be a finite number above 0",
    "-3": "must be a finite number above 0",
    ".nan": "must be a finite number above 0",
    ".inf": "must be a finite number above 0",
    "1e-300": "check its unit",
    "1e300": "check its unit",
    "yes": "reads a bare on, off, yes or no as a truth value",
    "cheap": "must be a number",
    "[1]": "must be a number",
}
KEYS = {"cost_per_hour: 100": 5, "throughput_tok_s: 10000": 6, "effective_share: 0.95": 7, "utilisation: 0.7": 12}


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("written", KEYS)
def test_a_number_that_is_none_is_refused_with_its_line_and_key(written, value):
    key, _ = written.split(":")
    told = refusal(changed(written, f"{key}: {value}"))
    assert told.startswith(f"costs.yaml:{KEYS[written]}: options.")
    assert f".{key}: " in told
    assert NUMBERS[value] in told


@pytest.mark.parametrize("value", ["-1", ".nan"])
def test_an_expense_may_be_nothing_but_not_less(value):
    told = refusal(changed("upkeep_per_period: 0", f"upkeep_per_period: {value}"))
    assert told.startswith("costs.yaml:14: options.1.upkeep_per_period: must be a ")


REFUSALS = {
    "a mistyped key": (
        changed("cost_per_hour: 100", "cost_per_hours: 100"),
        "costs.yaml:5: unknown key 'options.0.cost_per_hours'. Did you mean 'cost_per_hour'?",
    ),
    "a mistyped section": (
        changed("payback:", "paybak:"),
        "costs.yaml:15: unknown key 'paybak'. Did you mean 'payback'",
    ),
    "a mistyped key of the payback": (
        changed("period: month", "perod: month"),
        "costs.yaml:15: unknown key 'payback.perod'. Did you mean 'period'?",
    ),
    "a missing key": (changed("    cost_per_hour: 80\n", ""), "costs.yaml:8: 'options.1.cost_per_hour' is missing"),
    "a share in per cent": (
        changed("effective_share: 0.95", "effective_share: 95"),
        "costs.yaml:7: options.0.effective_share: is a share and cannot be above 1; write 0.95 for 95% (it says 95)",
    ),
    "the same name twice": (changed("name: B", "name: A"), "costs.yaml:8: options.1.name: 'A' stands twice"),
    "a name that is a number": (changed("name: B", "name: 4090"), "options.1.name: must be text; write it in quotes"),
    "a name YAML reads as a truth value": (
        changed("name: B", "name: off"),
        "costs.yaml:8: options.1.name: YAML reads a bare on, off, yes or no as a truth value; write it in quotes",
    ),
    "no name": (changed("name: B", 'name: " "'), "costs.yaml:8: options.1.name: must not be empty"),
    "a name as long as a page": (changed("name: B", f"name: {'B' * 100}"), "too long for a table; at most 80"),
    "no options": ("cost: none\noptions: []\n", "costs.yaml:2: options: must hold at least one option"),
    "options that are none": ("cost: none\noptions: 3\n", "costs.yaml:2: options: must be a list (it says 3)"),
    "an option that is none": ("cost: none\noptions: [3]\n", "costs.yaml:2: options.0: must be a mapping of keys"),
    "no output": (
        changed("    throughput_tok_s: 10000\n", ""),
        "costs.yaml:4: options.0: says nothing of its output; add throughput_tok_s:",
    ),
    "a study without a cell": (
        changed("    cell: code/forced/off/8\n", ""),
        "costs.yaml:10: options.1.study: needs cell: beside it, as in code/forced/off/8",
    ),
    "a cell without a study": (
        changed("    study: results/demo\n", ""),
        "costs.yaml:10: options.1.cell: needs study: beside it",
    ),
    "measured and given": (
        changed("utilisation: 0.7", "throughput_tok_s: 70"),
        "costs.yaml:12: options.1.throughput_tok_s: the study measured it",
    ),
    "the share said twice": (
        changed("effective_share: 0.95", "effective_share: 0.95\n    effective_throughput_tok_s: 9500"),
        "costs.yaml:7: options.0.effective_share: effective_throughput_tok_s: says it already",
    ),
    "more that counts than was written": (
        changed("effective_share: 0.95", "effective_throughput_tok_s: 10001"),
        "costs.yaml:7: options.0.effective_throughput_tok_s: cannot be above the 10000 of throughput_tok_s",
    ),
    "an expense without a payback": (
        COSTS[: COSTS.index("payback:")],
        "costs.yaml:13: options.1.one_off: belongs to a payback; add payback:",
    ),
    "an expense of what runs already": (
        changed("effective_share: 0.95", "one_off: 1"),
        "costs.yaml:7: options.0.one_off: the baseline runs already",
    ),
    "a baseline that is no option": (
        changed("baseline: A", "baseline: C"),
        "costs.yaml:15: payback.baseline: 'C' is no option; name one of A, B",
    ),
    "nothing to change to": (
        COSTS[: COSTS.index("  - name: B")] + COSTS[COSTS.index("payback:") :],
        "costs.yaml:8: payback: there is nothing to change to; add a second option",
    ),
    "a list": ("- cost: x\n", "costs.yaml: holds no costs. It must be a mapping that begins with 'cost: TITLE'."),
    "nothing": ("", "costs.yaml: holds no costs."),
    "no YAML": ("cost: [", "costs.yaml: is not valid YAML"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_mistake_is_refused_with_file_line_key_and_what_to_write(what):
    text, words = REFUSALS[what]
    assert words in refusal(text)


def test_several_mistakes_are_told_at_once():
    told = refusal(COSTS.replace("100\n", "0\n").replace("0.7", "70"))
    assert [line.partition(": ")[0] for line in told.splitlines()] == ["costs.yaml:5", "costs.yaml:12"]


def test_a_study_that_is_nowhere_is_refused_with_its_line(tmp_path: Path):
    file = parse_cost_file(changed("results/demo", "results/nowhere"), "costs.yaml", tmp_path)
    with pytest.raises(InputError, match=r"costs\.yaml:10: options\.1\.study: results/nowhere does not exist"):
        file.study_folder(1)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="Give the path of a cost file in YAML"):
        load_cost_file(tmp_path / "nowhere.yaml")


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_whatever_stands_in_a_file_it_is_read_or_refused(text):
    with pytest.raises(InputError):
        parse_cost_file(f"options: {text}\n", "costs.yaml", ROOT)
