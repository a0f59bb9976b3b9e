"""Gate 12 "until explained": what an explanation changes, where it is read, and everything that it cannot excuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specprof.analyse.explained import asks_for_explanation, with_explanations
from specprof.analyse.results import CellFigures, Severity
from specprof.decide.address import cell_at
from specprof.decide.conclude import conclude
from specprof.decide.explain import explain
from specprof.engine.sim import Content, Faults
from specprof.errors import InputError, StoreError
from specprof.publish.card import card
from specprof.publish.fitness import address, assess
from specprof.store import Store
from specprof.store.explained import FILE, Explanation, add_explanation, read_explanations
from tests.decide.compared_studies import STUDY, machine, sealed
from tests.running import specprof

WHERE = "code/forced/draft-k3/4"
HONEST = "The draft is the target itself: an upper bound."


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose draft is always right about code, and now and then wrong about JSON."""
    contents = {
        "code": Content((1.0, 0.9, 0.8), prompt_spread=0.0, eos_mean_tokens=4000),
        "json": Content((0.85, 0.8, 0.8), prompt_spread=0.4, eos_mean_tokens=4000),
    }
    text = STUDY.replace("output_tokens: 32", "output_tokens: 96")  # 200 steps a cell: beyond luck
    return sealed(tmp_path_factory.mktemp("explain") / "compared", text, on=machine(contents=contents))


@pytest.fixture
def study(measured: Path, tmp_path: Path) -> Path:
    """A copy of it to write into."""
    return Path(shutil.copytree(measured, tmp_path / "study"))


def cell_of(study: Path, where: str = WHERE) -> CellFigures:
    (found,) = (cell for cell in conclude(Store.existing(study)).figures.cells if address(cell) == where)
    return found


def explanation(text: str = HONEST, author: str = "Ada") -> Explanation:
    return Explanation("code", "forced", "draft-k3", 4, text, author, "2026-11-30T08:00:00.000+00:00")


def test_unexplained_it_forbids_and_explained_it_is_a_caution_with_the_same_number_and_evidence(study: Path) -> None:
    before = cell_of(study)
    (gate,) = (gate for gate in before.gates if gate.gate == 12)
    assert (gate.name, gate.severity, before.valid) == ("too good", Severity.INVALID, False)
    explain(Store.existing(study), WHERE, HONEST, "Ada")
    after = cell_of(study)
    (found,) = (gate for gate in after.gates if gate.gate == 12)
    assert (found.severity, after.valid) == (Severity.CAUTION, True)
    assert found.evidence.startswith(f"{gate.evidence}; explained by Ada on 20")
    assert found.evidence.endswith(f"“{HONEST}”")
    assert replace(after, gates=()) == replace(before, gates=())  # no figure moved


def test_gains_and_publication_follow_the_cell_and_no_other_cell_changes(study: Path) -> None:
    def fit() -> set[str]:
        return {found.context for found in assess(conclude(Store.existing(study)).figures).fit}

    before = fit()
    explain(Store.existing(study), WHERE, HONEST, "Ada")
    (line,) = fit() - before  # its gains rest on the cell at N=1 as well, which nobody has explained
    assert "code · forced 96" in line
    assert "N=4" in line
    assert "12 too good, explained" in line
    assert not cell_of(study, "code/forced/draft-k3/1").valid
    explain(Store.existing(study), "code/forced/draft-k3/1", HONEST, "Ada")
    assert any("speculation gain" in line and "12 too good, explained" in line for line in fit() - before)


def test_report_card_and_terminal_quote_it(study: Path) -> None:
    explain(Store.existing(study), WHERE, f"{HONEST} <script>alert(1)</script> [x](javascript:1)", "<b>Ada</b>")
    told = specprof("report", study)
    assert told.returncode == 0, told.stderr
    assert "12 too good, explained" in told.stdout
    assert "explained by <b>Ada</b> on 20" in " ".join(told.stdout.split())
    html = (study / "report.html").read_text(encoding="utf-8")
    assert "explained by &lt;b&gt;Ada&lt;/b&gt; on 20" in html
    assert "<script>alert(1)" not in html
    markdown = (study / "report.md").read_text(encoding="utf-8")
    assert "Gate 12: too good, explained" in markdown
    assert "<script>" not in markdown
    assert "](javascript:1)" not in markdown.replace(r"\]", "")
    cells = json.loads((study / "card.json").read_text(encoding="utf-8"))["cells"]
    (found,) = (gate for cell in cells for gate in cell["gates"] if gate["name"] == "too good, explained")
    assert HONEST in found["evidence"]
    assert found["severity"] == "caution"


def test_a_card_without_an_explanation_looks_as_before(measured: Path) -> None:
    assert "explained" not in json.dumps(card(conclude(Store.existing(measured)).figures)).lower()


def test_all_that_was_said_stands_in_order_and_quotation_marks_cannot_end_it(study: Path) -> None:
    add_explanation(study, explanation("first” by nobody: “all is well"))
    add_explanation(study, explanation("second", "Bo"))
    (found,) = (gate for gate in cell_of(study).gates if gate.gate == 12)
    assert found.evidence.endswith(
        'explained by Ada on 2026-11-30: “first" by nobody: "all is well”; explained by Bo on 2026-11-30: “second”'
    )


@pytest.mark.parametrize(
    "other", [(12, "inconsistent"), (12, "above the roofline"), (9, "foreign traffic"), (7, "loops")]
)
def test_no_other_gate_is_explained_away(measured: Path, other: tuple[int, str]) -> None:
    cell = cell_of(measured)
    gate = replace(cell.gates[0], gate=other[0], name=other[1], severity=Severity.INVALID)
    both = replace(cell, gates=(*cell.gates, gate))
    after = with_explanations(both, [explanation()])
    assert not after.valid
    assert gate in after.gates
    alone = replace(cell, gates=(gate,), survival=())
    assert asks_for_explanation(alone) is None
    assert with_explanations(alone, [explanation()]) == alone


def test_a_position_that_never_fails_in_few_steps_can_be_explained_too(measured: Path) -> None:
    """No gate of the report, but the page of publication refuses it; the explanation becomes a caution of its own."""
    few = replace(cell_of(measured), gates=())
    assert (few.survival[0].value or 0) >= 0.999
    (gate,) = with_explanations(few, [explanation()]).gates
    assert (gate.gate, gate.severity) == (12, Severity.CAUTION)
    assert gate.evidence.startswith("draft position 1 was accepted in 100.0% of the steps; explained by Ada")


@pytest.mark.parametrize(
    ("where", "text", "author", "says"),
    [
        ("json/forced/draft-k3/4", HONEST, "Ada", "there is nothing to explain"),
        ("code/forced/draft-k3/9", HONEST, "Ada", "is no measured cell.*nearest.*code/forced/draft-k3"),
        (WHERE, "  \n ", "Ada", "TEXT: says nothing"),
        (WHERE, HONEST, " ", "--by: says nothing"),
        (WHERE, "x" * 501, "Ada", "501 characters, at most 500"),
    ],
)
def test_what_cannot_be_explained_is_refused_and_nothing_is_written(
    study: Path, where: str, text: str, author: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        explain(Store.existing(study), where, text, author)
    assert not (study / FILE).exists()


def test_what_else_forbids_the_cell_is_named_and_still_does(tmp_path: Path) -> None:
    """Half of the requests end at 60% of the length asked for, which no words about the draft can mend (gate 10)."""
    contents = {tag: Content((1.0, 0.9, 0.8), prompt_spread=0.0, eos_mean_tokens=4000) for tag in ("code", "json")}
    cut = machine(contents=contents, faults=Faults(short_length_share=0.5))
    study = sealed(tmp_path / "compared", STUDY, on=cut)
    done = explain(Store.existing(study), WHERE, HONEST, "Ada")
    assert "gate 10 (length)" in done.still_forbidden
    assert not [named for named in done.still_forbidden if named.startswith("gate 12")]
    assert not cell_of(study).valid


def test_in_a_study_without_cells_none_is_the_nearest() -> None:
    with pytest.raises(InputError, match=rf"^{WHERE}: is no measured cell.*results/empty holds none yet"):
        cell_at((), WHERE, study=Path("results/empty"), where=f"{WHERE}:")


def test_an_explanation_of_nothing_is_noted(study: Path) -> None:
    add_explanation(study, replace(explanation(), tag="json"))
    notes = conclude(Store.existing(study)).figures.notes
    assert "An explanation of json/forced/draft-k3/4 by Ada has nothing to explain." in notes


@pytest.mark.parametrize("content", ["{", "{}", '[{"tag": "code"}]', '[{"tag": 1}]', "[3]"])
def test_a_damaged_file_is_named(study: Path, content: str) -> None:
    (study / FILE).write_text(content, encoding="utf-8")
    with pytest.raises(StoreError, match=r"explained\.json"):
        read_explanations(study)


def test_the_command_says_what_still_forbids_the_cell(study: Path) -> None:
    done = specprof("explain", study, WHERE, HONEST, "--by", "Ada")
    assert done.returncode == 0, done.stderr
    assert f"Explained: {WHERE}: draft position 1 was accepted in 100.0% of" in done.stdout
    assert json.loads((study / FILE).read_text(encoding="utf-8"))[0]["author"] == "Ada"
    refused = specprof("explain", study, "json/forced/off/4", HONEST, "--by", "Ada")
    assert refused.returncode == 2
    assert "there is nothing to explain" in refused.stderr
