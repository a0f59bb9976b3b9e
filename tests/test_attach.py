"""A study of servers that run already, from its file to its figures; the simulator's real socket among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specprof.analyse.results import CellFigures, StudyFigures
from specprof.decide.conclude import conclude
from specprof.engine.access import Access
from specprof.errors import EngineDied, EngineError, InputError
from specprof.measure import loop
from specprof.measure.loop import run_study
from specprof.store import Store
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.engine.elsewhere import Elsewhere, running
from tests.measure.doubles import Journal
from tests.running import ROOT, specprof, started

TOKEN = "sk-9b1d77e0c4"
TOKENS = 24
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


def study_text(arms: dict[str, str], *, more: str = "", rest: str = "") -> str:
    """A small study; every arm but `off` claims n-gram drafts."""
    addresses = ", ".join(f'"{arm}": "{url}"' for arm, url in arms.items())
    claims = ", ".join(
        f'"{arm}": {{}}' if arm == "off" else f'"{arm}": {{speculative_config: {NGRAM}}}' for arm in arms
    )
    return f"""
study: attached
engine: {{kind: attach, arms: {{{addresses}}}{more}}}
arms: {{{claims}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {TOKENS}}}}}
concurrency: [2]
prompts: 4
{rest}
"""


def measured(tmp_path: Path, text: str) -> Store:
    study = parse_study(text, "attached.yaml")
    store = Store.create(tmp_path / "attached", text, study.content_hash())
    run_study(study, make_plan(study), store, Journal())
    return store


def cell_of(figures: StudyFigures, arm: str) -> CellFigures:
    return next(cell for cell in figures.cells if cell.arm == arm)


def names_of_gates(cell: CellFigures) -> set[tuple[int, str]]:
    return {(gate.gate, gate.name) for gate in cell.gates}


@contextmanager
def simulated(*options: str) -> Iterator[str]:
    """`specprof sim` in a process of its own, ready."""
    with started("sim", "--port", "0", "--time-scale", "20", *options) as run:
        yield run.address()


def test_two_simulated_servers_are_measured_as_if_they_had_been_started(tmp_path: Path) -> None:
    with simulated() as off, simulated("--speculation", NGRAM) as on:
        text = study_text({"off": off, "on": on}, rest="blocks: 2")
        store = measured(tmp_path, text)
        swapped = study_text({"off": on, "on": off})
        with pytest.raises(InputError, match=r"has no speculative_config, but|does not speculate"):
            measured(tmp_path / "swapped", swapped)
    facts = store.facts()
    assert [facts[n].extra["arm"] for n in facts] in (["off", "on", "on", "off"], ["on", "off", "off", "on"])
    assert {f.kind for f in facts.values()} == {"attach"}
    assert {f.extra["time_scale"] for f in facts.values()} == {20.0}
    figures = conclude(store).figures
    assert cell_of(figures, "off").acceptance_length is None
    accepted = cell_of(figures, "on").acceptance_length
    assert accepted is not None and 1 < (accepted.value or 0) <= 5
    for arm in ("off", "on"):
        assert cell_of(figures, arm).output_tokens.value == TOKENS
        assert not {gate for gate, _ in names_of_gates(cell_of(figures, arm))} & {5, 8, 9, 10, 13}
    assert any("attached to, not started" in note for note in figures.notes)
    assert not any("not reported" in note for note in figures.notes)


def test_an_engine_that_tells_little_is_measured_with_what_it_tells(tmp_path: Path) -> None:
    """llama.cpp: 24 tokens a text, 12 drafted, 6 accepted: half of the guesses held, and 18 steps wrote the 24."""
    with (
        running(Elsewhere("llama.cpp")) as off,
        running(Elsewhere("llama.cpp", drafts=True, drafted=12, accepted=6)) as on,
    ):
        figures = conclude(measured(tmp_path, study_text({"off": off.base_url, "on": on.base_url}))).figures
    cell = cell_of(figures, "on")
    assert cell.acceptance_length is None
    assert cell.acceptance_rate is not None and cell.acceptance_rate.value == pytest.approx(0.5)
    assert cell.tokens_per_engine_step.value == pytest.approx(24 / 18)
    assert cell.throughput_tok_s.value is not None and cell.throughput_tok_s.value > 0
    assert cell.output_tokens.value == TOKENS
    names = names_of_gates(cell)
    assert not {gate for gate, _ in names} & {9, 10, 13}
    assert not names & {(12, "inconsistent"), (12, "merged chunks")}, "a step comes in several chunks here"
    assert any(note.startswith("Token ids: not reported by the server of off and on.") for note in figures.notes)


def test_acceptance_that_nobody_reports_is_said_to_be_missing(tmp_path: Path) -> None:
    with (
        running(Elsewhere("sglang", refused=("top_k",))) as off,
        running(Elsewhere("sglang", refused=("top_k",), drafts=True, per_step=3)) as on,
    ):
        figures = conclude(measured(tmp_path, study_text({"off": off.base_url, "on": on.base_url}))).figures
    cell = cell_of(figures, "on")
    assert cell.acceptance_length is cell.acceptance_rate is None
    assert cell.tokens_per_engine_step.value is None
    assert cell.decode_speed_tok_s.value is not None
    assert (13, "speculation inactive") not in names_of_gates(cell)
    assert any(note.startswith("Acceptance: not reported by the server of on.") for note in figures.notes)
    assert any("went without top_k" in note for note in figures.notes)
    assert all("top_k" not in body for body in on.asked[1:])


def test_other_people_s_requests_show_in_the_counters(tmp_path: Path) -> None:
    with running(Elsewhere(foreign_tokens=3)) as server:
        figures = conclude(measured(tmp_path, study_text({"off": server.base_url}))).figures
    assert (9, "foreign traffic") in names_of_gates(cell_of(figures, "off"))


def test_without_counters_nobody_could_see_them(tmp_path: Path) -> None:
    with running(Elsewhere(foreign_tokens=3, counters=False)) as server:
        figures = conclude(measured(tmp_path, study_text({"off": server.base_url}))).figures
    assert (9, "no counters") in names_of_gates(cell_of(figures, "off"))
    assert any("Foreign traffic cannot be seen" in note for note in figures.notes)


@pytest.mark.parametrize("counters", [True, False])
def test_a_server_that_goes_away_ends_the_run_and_keeps_what_is_sealed(
    counters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two knocks in vain are its death, and here they come long after the requests have failed."""
    monkeypatch.setattr(loop, "SETTLE_S", 0.0)
    monkeypatch.setattr(loop, "WATCH_PERIOD_S", 0.01)
    with running(Elsewhere(dies_after=12, counters=counters)) as server:
        text = study_text({"off": server.base_url})
        with pytest.raises(EngineDied, match=server.base_url):
            measured(tmp_path, text)
    store = Store.existing(tmp_path / "attached")
    num_planned = len(make_plan(parse_study(text, "attached.yaml")).cells)
    sealed = list(store.cells())
    assert 0 < len(sealed) < num_planned
    assert not any(error for data in sealed for error in data.requests.select(["error"])["error"].to_pylist())


def test_an_address_with_a_path_is_measured_under_that_path(tmp_path: Path) -> None:
    with running(Elsewhere(prefix="/pool/a")) as server:
        figures = conclude(measured(tmp_path, study_text({"off": server.base_url}))).figures
    assert cell_of(figures, "off").output_tokens.value == TOKENS


def test_the_token_is_in_every_request_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", TOKEN)
    server = Elsewhere(token=TOKEN)
    config = tmp_path / "attached.yaml"
    with running(server):
        config.write_text(study_text({"off": server.base_url}, more=", token_env: SERVER_TOKEN"))
        doctor = specprof("doctor", config)
        run = specprof("run", config, "--results", tmp_path / "results")
    assert run.returncode == 0, run.stdout + run.stderr
    assert set(server.tokens_seen) == {f"Bearer {TOKEN}"}
    assert TOKEN not in doctor.stdout + doctor.stderr + run.stdout + run.stderr
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert any(path.name == "facts.json" for path in written)
    assert any(path.name == "report.html" for path in written)
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_a_wrong_token_is_told_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", "sk-of-somebody-else")
    server = Elsewhere(token=TOKEN)
    config = tmp_path / "attached.yaml"
    with running(server):
        config.write_text(study_text({"off": server.base_url}, more=", token_env: SERVER_TOKEN"))
        run = specprof("run", config, "--results", tmp_path / "results")
    assert run.returncode == InputError.exit_code
    assert "SERVER_TOKEN" in run.stderr
    assert "sk-of-somebody-else" not in run.stdout + run.stderr


def test_a_sampled_study_is_scored_on_the_arm_without_speculation(tmp_path: Path) -> None:
    from specprof.measure.attached import on_its_server
    from specprof.measure.score import SCORING
    from specprof.records import Launch

    text = study_text({"on": "http://b:1", "off": "http://a:1"}, rest="sampling: {temperature: 0.8}")
    study = parse_study(text, "attached.yaml")
    launch = Launch(0, 0, SCORING, None, ())
    assert on_its_server(study, launch) == replace(launch, arm="off")


def test_servers_that_were_set_up_anew_do_not_finish_another_s_study(tmp_path: Path) -> None:
    with running(Elsewhere()) as server:
        measured(tmp_path, study_text({"off": server.base_url}))
    with running(Elsewhere(model="other")) as server, pytest.raises(InputError, match=r"model other.* with m"):
        measured(tmp_path, study_text({"off": server.base_url}, rest="blocks: 2"))


def test_a_token_that_runs_out_ends_the_run_and_is_not_shown_though_the_server_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_TOKEN", TOKEN)
    text = study_text({"off": "URL"}, more=", token_env: SERVER_TOKEN")
    with (
        running(Elsewhere(token=TOKEN, token_expires_after=9)) as server,
        pytest.raises(EngineError, match="Renew the token") as problem,
    ):
        measured(tmp_path, text.replace("URL", server.base_url))
    assert TOKEN not in str(problem.value)
    store = Store.existing(tmp_path / "attached")
    assert len(list(store.cells())) == 1, "what had been measured by then"
    assert not [path for path in store.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert Access("SERVER_TOKEN").scrubbed(f"bad key {TOKEN}!".encode()) == b"bad key (token)!"
