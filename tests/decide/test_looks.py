"""`blocks: auto`: when a look may be the last, what three looks cost, and a run that looks and goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import product
from math import erf, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as distributions

from specprof.analyse.results import Figure, GainFigures, Outcome, StudyFigures, VerdictFigures
from specprof.api import running
from specprof.cli import measuring
from specprof.decide.conclude import conclude
from specprof.decide.looks import BOUNDARY_Z, enough, look_confidence
from specprof.engine.sim import VirtualEngine, machine_of
from specprof.measure import loop
from specprof.measure.environment import CEILING
from specprof.records import Cell, CellRecord, EngineFacts, Launch, Prompt
from specprof.store import Store
from specprof.study.config import AUTO_LOOKS
from specprof.study.engines import SimEngine
from specprof.study.reading import parse_study
from tests.running import ROOT, sealed

POCOCK_Z = 2.289  # Pocock 1977, three looks, 5% two-sided


def only_with(kind, **given):
    """A figure of which nothing else is looked at."""
    return kind(**{field.name: None for field in fields(kind)} | given)


def gain(low, high, valid=True):
    return only_with(GainFigures, speculation_gain=Figure((low + high) / 2, low, high), valid=valid)


def study(gains=(), outcomes=()):
    verdicts = tuple(only_with(VerdictFigures, outcome=Outcome(outcome)) for outcome in outcomes)
    return only_with(StudyFigures, gains=tuple(gains), verdicts=verdicts)


NARROW, WIDE = gain(1.46, 1.54), gain(1.40, 1.60)  # ±2.7% and ±6.7%
UNKNOWN = only_with(GainFigures, speculation_gain=Figure(1.5), valid=True)


@pytest.mark.parametrize(
    ("figures", "is_enough"),
    [
        (study([NARROW]), True),
        (study([WIDE]), False),
        (study([NARROW, WIDE]), False),  # every gain, not one
        (study([NARROW, UNKNOWN]), False),  # without an interval nothing is known well
        (study([NARROW, gain(1.0, 9.0, valid=False)]), True),  # no number of blocks mends a number that is unfit
        (study([gain(1.0, 9.0, valid=False)]), False),  # and nothing fit is not enough
        (study([]), False),
        (study([], ["pass", "fail"]), True),  # a study of verdicts alone
        (study([], ["pass", "undecided"]), False),
        (study([NARROW], ["pass"]), True),
        (study([NARROW], ["undecided"]), False),
        (study([WIDE], ["pass"]), False),
    ],
)
def test_a_look_is_the_last_when_all_is_decided_and_known(figures, is_enough):
    assert enough(figures, 0.05) is is_enough


def test_the_target_itself_is_narrow_enough():
    assert enough(study([gain(0.75, 1.25)]), 0.25)
    assert not enough(study([gain(0.75, 1.25)]), 0.2499)


def test_a_look_s_confidence_is_that_of_its_boundary():
    assert look_confidence() == pytest.approx(erf(BOUNDARY_Z / sqrt(2)))


def test_pocock_s_boundary_costs_5_percent_where_the_variance_is_known():
    """The three estimates are means of the first 4, 8, 12 of twelve blocks: normal, correlated by sqrt(4/8) and so on.
    The chance that all three stay inside the boundary is an integral over their joint density. Ours lies outside it.
    """
    correlation = np.array([[sqrt(min(a, b) / max(a, b)) for a in AUTO_LOOKS] for b in AUTO_LOOKS])
    inside = distributions.multivariate_normal(cov=correlation).cdf(
        [POCOCK_Z] * 3, lower_limit=[-POCOCK_Z] * 3, rng=np.random.default_rng(0)
    )
    assert 1 - inside == pytest.approx(0.05, abs=5e-4)
    assert BOUNDARY_Z > POCOCK_Z


@pytest.mark.parametrize(("boundary", "error"), [(POCOCK_Z, 0.0541), (BOUNDARY_Z, 0.05)])
def test_three_looks_at_t_intervals_err_in_5_percent_of_studies(boundary, error):
    """The twelve blocks drawn half a million times over, the variance estimated at every look."""
    draws = np.random.default_rng(1).standard_normal((500_000, AUTO_LOOKS[-1]))
    wrong = np.zeros(len(draws), dtype=bool)
    for look in AUTO_LOOKS:
        seen = draws[:, :look]
        t = np.abs(seen.mean(axis=1)) / (seen.std(axis=1, ddof=1) / sqrt(look))
        wrong |= t > distributions.t.isf(distributions.norm.sf(boundary), look - 1)
    assert wrong.mean() == pytest.approx(error, abs=4 * sqrt(error / len(draws)))


# -- a run ---------------------------------------------------------------------------------------------------------

STUDY = f"""
study: auto
engine: {{kind: sim, preset: small, parameters: {{noise: {{launch_sigma: 0.02}}}}}}
arms: {{"off": {{}}, "on": {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 24}}}}
concurrency: [1]
prompts: 8
warmup_tokens: 0
blocks: auto
"""


def test_the_planned_looks_are_after_4_8_and_12_blocks():
    assert parse_study(STUDY, "study.yaml").looks == AUTO_LOOKS == (4, 8, 12)


class Launched:
    """One launch of a simulated machine, on the virtual clock."""

    base_url, served_model = "http://127.0.0.1", "sim-small"

    def __init__(self, spec: SimEngine, launch: Launch) -> None:
        machine = machine_of(spec.preset, spec.parameters)
        self.virtual = VirtualEngine(machine, launch.speculative_config, launch_index=launch.index)

    def facts(self) -> EngineFacts:
        return EngineFacts("sim", "simulated", "1", "sim-small", "hash")

    def death(self) -> None:
        return None


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The loop runs on the virtual clock: nothing that else goes on here is in a gain. Every engine that it started."""
    started: list[Launch] = []

    @contextmanager
    def start(spec: SimEngine, launch: Launch, *_: object) -> Iterator[Launched]:
        started.append(launch)
        yield Launched(spec, launch)

    def measure(cell: Cell, prompts: Mapping[str, Prompt], engine: Launched, number: int, *_: object) -> CellRecord:
        return replace(engine.virtual.measure(cell, prompts), launch=number)

    monkeypatch.setattr(loop, "start", start)
    monkeypatch.setattr(loop, "measure", measure)
    monkeypatch.setattr(running, "client", lambda: {CEILING: 100_000})
    return started


def num_launches(results: Path) -> int:
    return len(list((results / "launches").iterdir()))


def blocks_of_gains(results: Path) -> set[int]:
    return {gain.num_blocks for gain in conclude(Store.existing(results)).figures.gains}


def test_an_easy_study_stops_at_its_first_look_and_a_harder_target_goes_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], starts: list[Launch]
) -> None:
    """±200% is known after 4 blocks; ±0.01% never is, so the last look ends it. Each block starts both arms."""
    path, results = tmp_path / "study.yaml", tmp_path / "auto"

    def run(target_half_width: float) -> str:
        path.write_text(STUDY + f"target_half_width: {target_half_width}\n")
        measuring.run(path, tmp_path, report_after=False)
        return capsys.readouterr().out.replace("\n", "")

    assert "decided after 4 blocks." in run(2.0)
    assert num_launches(results) == len(starts) == 8
    assert blocks_of_gains(results) == {4}
    first_look = sealed(results)
    assert {key.partition("-")[0] for key in first_look} == {"b0", "b1", "b2", "b3"}

    assert "decided after 4 blocks." in run(2.0)
    assert num_launches(results) == len(starts) == 8, "an engine started for nothing"

    assert "decided after" not in run(0.0001)
    assert num_launches(results) == len(starts) == 24
    assert blocks_of_gains(results) == {12}
    assert first_look.items() <= sealed(results).items(), "a cell of the first look was measured again"
    blocks_and_arms = {tuple(key.split("-")[:2]) for key in sealed(results)}
    assert blocks_and_arms == set(product((f"b{b}" for b in range(12)), ("off", "on")))
