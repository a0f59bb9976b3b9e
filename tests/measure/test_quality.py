"""Judging sealed texts: bounded whatever they hold, once per check, and with a command of the user's own."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from specprof.decide.conclude import conclude
from specprof.errors import InputError, StoreError
from specprof.measure import quality
from specprof.measure.quality import Marker, ask, judge_study, require_runnable, unjudged
from specprof.measure.quality import _serve as serve
from specprof.records import Arrivals, Phase, Role
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.load import BuiltIn, Command
from specprof.study.plan import Plan, make_plan
from specprof.study.quality import Answer, Mark, mark
from specprof.study.reading import parse_study
from tests.factory import distinct_tokens, make_cell, make_prompt, make_record, make_request
from tests.running import ROOT, specprof, wait_gone

GOOD, CUT = '{"a": 1}', '{"a": 1'

STUDY = f"""
study: judged
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}}}
workloads:
  - {{tag: json, suite: {ROOT}/prompts/json.jsonl, ids: [json-045, json-046, json-047], quality: QUALITY}}
protocols:
  free: {{stop: natural, max_tokens: 16}}
format: chat
prompts: 3
"""


def study_of(quality: str) -> Study:
    return parse_study(STUDY.replace("QUALITY", quality), "judged")


def answer(text: str, schema: dict[str, Any] | None = None) -> Answer:
    return Answer(make_prompt(text="As JSON:\n", schema=schema), text, distinct_tokens("x", 8), chat=True)


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Store, Plan]:
    """A study whose one figure cell is sealed: a warm-up, a good text, a cut one and a failure."""
    study = study_of("json")
    plan = make_plan(study)
    store = Store.create(tmp_path / "judged", STUDY.replace("QUALITY", "json"), study.content_hash())
    (cell,) = (cell for cell in plan.cells if cell.role is Role.FIGURE)
    first, second, third = cell.prompt_ids
    requests = (
        make_request(first, num_tokens=8, text=CUT, phase=Phase.WARMUP),
        make_request(first, num_tokens=8, text=GOOD),
        make_request(second, num_tokens=8, text=CUT),
        replace(make_request(third, num_tokens=8, text=GOOD), error="HTTP 500: out of memory"),
    )
    store.seal(make_record(cell, requests))
    return store, plan


def key_of(plan: Plan) -> str:
    (cell,) = (cell for cell in plan.cells if cell.role is Role.FIGURE)
    return cell.key


# -- judging a study --------------------------------------------------------------------------------------------------


def goodness(store: Store) -> dict[str, list[bool | None]]:
    """Good, bad or (None) not judged, for each row of a judged cell's requests, by the cell's key."""
    return {key: list(found.good) for key, found in store.marks().items()}


def test_marks_stand_row_by_row_and_are_made_once(sealed: tuple[Store, Plan]) -> None:
    store, plan = sealed
    study, told = study_of("json"), []
    assert [cell.key for cell in unjudged(study, plan, store)] == [key_of(plan)]
    judge_study(study, plan, store, lambda: told.append(1))
    assert goodness(store) == {key_of(plan): [None, True, False, None]}
    marks = store.marks()[key_of(plan)]
    assert marks.checks == {"json": "json"}
    assert marks.why[0] == "was not measured"
    assert marks.why[1] == ""
    assert marks.why[2].startswith("is not one JSON value")
    assert marks.why[3] == "failed"
    assert len(told) == 4
    assert unjudged(study, plan, store) == ()
    before = (store.root / "quality" / f"{key_of(plan)}.json").read_bytes()
    judge_study(study, plan, store)
    assert (store.root / "quality" / f"{key_of(plan)}.json").read_bytes() == before


def test_a_changed_check_judges_anew(sealed: tuple[Store, Plan], tmp_path: Path) -> None:
    store, plan = sealed
    judge_study(study_of("json"), plan, store)
    script = tmp_path / "check.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    own = study_of(f"{{command: [{script}]}}")
    assert len(unjudged(own, plan, store)) == 1
    judge_study(own, plan, store)
    assert goodness(store)[key_of(plan)] == [None, False, False, None]
    assert unjudged(own, plan, store) == ()
    script.write_text("#!/bin/sh\nexit 0\n")
    assert len(unjudged(own, plan, store)) == 1, "an edited script is another check"
    judge_study(own, plan, store)
    assert goodness(store)[key_of(plan)] == [None, True, True, None]


def test_a_cell_that_is_measured_again_is_judged_again(sealed: tuple[Store, Plan]) -> None:
    store, plan = sealed
    judge_study(study_of("json"), plan, store)
    (cell,) = (cell for cell in plan.cells if cell.role is Role.FIGURE)
    for path in (store.root / "cells" / cell.key).iterdir():
        path.unlink()
    assert goodness(store) == {}
    store.seal(make_record(cell, [make_request(name, num_tokens=8, text=GOOD) for name in cell.prompt_ids]))
    assert goodness(store) == {}, "the old marks are of other texts"
    judge_study(study_of("json"), plan, store)
    assert goodness(store) == {cell.key: [True, True, True]}


def test_marks_that_fit_no_cell_are_refused_with_what_to_do(sealed: tuple[Store, Plan]) -> None:
    store, plan = sealed
    judge_study(study_of("json"), plan, store)
    path = store.root / "quality" / f"{key_of(plan)}.json"
    told = json.loads(path.read_text())
    for wrong in ({"good": [True]}, {"good": [1, 0, 1, 0]}, {"why": None}):
        path.write_text(json.dumps({**told, **wrong}))
        with pytest.raises(StoreError, match="Remove it to judge the cell again"):
            goodness(store)
    path.write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        goodness(store)


def test_an_interrupted_write_leaves_nothing(sealed: tuple[Store, Plan]) -> None:
    store, plan = sealed
    (store.root / "quality").mkdir()
    (store.root / "quality" / f".{key_of(plan)}.json.tmp").write_text("half")
    assert goodness(store) == {}


def test_forced_texts_and_sentinels_are_not_judged(sealed: tuple[Store, Plan]) -> None:
    store, _ = sealed
    forced = parse_study(
        STUDY.replace("QUALITY", "json").replace("stop: natural, max_tokens", "stop: forced, output_tokens"), "judged"
    )
    plan = make_plan(forced)
    for cell in plan.cells:
        store.seal(make_record(cell, [make_request(name, num_tokens=8, text=GOOD) for name in cell.prompt_ids]))
    assert unjudged(forced, plan, store) == ()


def test_in_an_open_loop_every_text_that_came_is_judged(tmp_path: Path) -> None:
    """Tokens of warm-up and filling requests arrive in the window too, and whether they are of use must be known."""
    study = study_of("json")
    names = ("json-045", "json-046", "json-047")
    arrivals = Arrivals("poisson", 1.0, 1.0, 1.0, 1.0, 60.0, (0.5, 1.5, 2.5))
    cell = make_cell(
        key="b0-off-json-open-r0.5-abc", role=Role.OPEN, tag="json", stop=study.protocols["free"].stop, chat=True,
        concurrency=0, prompt_ids=names, arrivals=arrivals,
    )  # fmt: skip
    store = Store.create(tmp_path / "judged", "study: judged\n", study.content_hash())
    phases = (Phase.WARMUP, Phase.MEASURED, Phase.FILL)
    texts = (GOOD, CUT, GOOD)
    store.seal(
        make_record(
            cell,
            [make_request(n, num_tokens=8, phase=p, text=t) for n, p, t in zip(names, phases, texts, strict=True)],
        )
    )
    plan = make_plan(study)
    (launch, *_) = plan.launches
    judge_study(study, Plan((replace(launch, cells=(cell,)),), plan.prompts), store)
    assert goodness(store) == {cell.key: [True, False, True]}


def test_what_is_not_judged_is_noted_and_what_is_stands_in_the_figures(sealed: tuple[Store, Plan]) -> None:
    store, plan = sealed
    before = conclude(store).figures
    assert before.quality == ()
    assert any(note.startswith("The texts of 1 cells are not judged yet") for note in before.notes)
    judge_study(study_of("json"), plan, store)
    (found,) = conclude(store).figures.quality
    assert (found.num_requests, found.num_good, found.num_bad, found.num_failed, found.num_unjudged) == (3, 1, 1, 1, 0)
    assert found.good_request_share.value == pytest.approx(1 / 3)
    assert not any("not judged" in note for note in conclude(store).figures.notes)


# -- the built-in checks, bounded -------------------------------------------------------------------------------------


def doubling(depth: int) -> dict[str, Any]:
    """A schema of `depth` definitions that asks for 2^depth visits of the same value."""
    steps = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**steps, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, json.dumps("a" * 60 + "b")),
        (doubling(60), '"text"'),
    ],
    ids=["a slow pattern", "a schema that doubles"],
)
def test_a_check_without_end_is_ended_and_the_next_text_is_judged(schema: dict[str, Any], text: str) -> None:
    with Marker(limit_s=3.0) as marker:
        assert marker.mark("json", answer(text, schema)) == Mark(None, "took more than 3 s of a processor to judge")
        marker._limit_s = 60.0  # the next process may have to wait for a busy machine
        assert marker.mark("json", answer(GOOD)) == Mark(True)


WAIT_S = 2.0


def _serve_where_nobody_works(connection: Connection, limit_s: float) -> None:
    """As a check is that the machine gives no time to."""

    def late(check: BuiltIn, answer: Answer) -> Mark:
        time.sleep(WAIT_S)
        return mark(check, answer)

    quality._mark_safely = late
    serve(connection, limit_s)


def test_a_text_is_judged_however_little_time_the_machine_has_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_serve", _serve_where_nobody_works)
    with Marker(limit_s=WAIT_S / 2) as marker:
        assert marker.mark("json", answer(GOOD)) == Mark(True)


def test_a_check_that_waits_for_ever_is_ended_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_serve", _serve_where_nobody_works)
    with Marker(limit_s=WAIT_S / 20) as marker:
        assert marker.mark("json", answer(GOOD)) == Mark(None, "was not judged within 1 s")


def test_deep_python_cannot_bring_the_run_down() -> None:
    with Marker() as marker:
        prompt = make_prompt(text="x = 1\n")
        for code in ("1" + "+1" * 200_000, "-" * 200_000 + "1", "(" * 200_000, "x" + "[0]" * 200_000):
            judged = marker.mark("code", Answer(prompt, f"```python\n{code}\n```", (), chat=True))
            assert judged.good is not True
        assert marker.mark("code", Answer(prompt, "y = 2\n", (), chat=True)) == Mark(True)


def test_a_process_that_dies_costs_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with Marker() as marker:
        assert marker.mark("json", answer(GOOD)) == Mark(True)
        assert marker._running is not None
        marker._running[0].kill()
        marker._running[0].join()
        assert marker.mark("json", answer(GOOD)) == Mark(None, "brought the check down")
        assert marker.mark("json", answer(GOOD)) == Mark(True)


def test_no_process_is_left_behind() -> None:
    with Marker() as marker:
        marker.mark("json", answer(GOOD))
        assert marker._running is not None
        pid = marker._running[0].pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


# -- the user's own ---------------------------------------------------------------------------------------------------


def python(code: str, timeout: float = 120) -> Command:
    return Command(command=(sys.executable, "-c", code), timeout=timeout)


def test_a_command_reads_the_text_and_its_exit_status_decides() -> None:
    echo = python("import sys; sys.exit(sys.stdin.buffer.read().decode() != 'Größe 你好\\n')")
    assert ask(echo, "Größe 你好\n") == Mark(True)
    judged = ask(echo, "another")
    assert judged == Mark(False, f"command {sys.executable} ended with status 1")


def test_a_command_that_reads_nothing_of_a_long_text_is_no_trouble() -> None:
    assert ask(python("pass"), "x" * 1_000_000) == Mark(True)


def test_a_command_that_takes_too_long_is_bad_and_gone_with_its_children(tmp_path: Path) -> None:
    """Its time must suffice for its child to be there, or nothing is tested: on a busy machine it gets more."""
    script, child = tmp_path / "slow.sh", tmp_path / "child"
    script.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {child}.part\nmv {child}.part {child}\nwait\n")
    script.chmod(0o755)
    for timeout in (2, 10, 60):
        judged = ask(Command(command=(str(script),), timeout=timeout), "text")
        assert judged == Mark(False, f"command {script} did not end within {timeout} s")
        if child.exists():
            break
    assert wait_gone([int(child.read_text())], 60)


def test_a_command_that_a_signal_ends_is_bad() -> None:
    assert "was ended by signal 9" in ask(python("import os; os.kill(os.getpid(), 9)"), "x").why


def test_a_command_sees_none_of_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    names = "{'PATH', 'HOME', 'LANG', 'LC_ALL', 'LC_CTYPE', 'TMPDIR', 'TZ'}"
    assert ask(python(f"import os, sys; sys.exit(not set(os.environ) <= {names})"), "x") == Mark(True)
    assert "PATH" in os.environ


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    ask(Command(command=("echo", f"$(touch {witness})", ";", "touch", str(witness))), "x")
    assert not witness.exists()


def test_a_command_that_is_not_there_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("not executable")
    for program in ("no-such-program-anywhere", str(tmp_path / "absent"), str(plain)):
        with pytest.raises(InputError, match=r"workload json: quality: command: .* is no program that can be started"):
            require_runnable(study_of(f"{{command: [{program}]}}"))
    require_runnable(study_of("{command: [echo]}"))
    path = tmp_path / "judged.yaml"
    path.write_text(STUDY.replace("QUALITY", "{command: [no-such-program-anywhere]}"), encoding="utf-8")
    run = specprof("run", path, "--results", tmp_path / "results")
    assert run.returncode == 2, run.stdout + run.stderr
    assert "no program that can be started" in run.stderr
    assert not (tmp_path / "results").exists()


def test_a_script_the_system_cannot_start_is_the_users_to_correct(tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_bytes(b"\x7fnonsense")
    script.chmod(0o755)
    with pytest.raises(InputError, match="cannot be started"):
        ask(Command(command=(str(script),)), "x")


# -- the whole command ------------------------------------------------------------------------------------------------


def test_a_run_judges_what_it_measured_and_reports_it(tmp_path: Path) -> None:
    """The simulator writes no JSON: every text is bad, and the report says so without the prompts."""
    path = tmp_path / "judged.yaml"
    path.write_text(STUDY.replace("QUALITY", "json"), encoding="utf-8")
    run = specprof("run", path, "--results", tmp_path)
    assert run.returncode == 0, run.stderr
    assert "judging the texts of 1 cells." in run.stdout
    assert "0.0% of requests" in run.stdout
    results = tmp_path / "judged"
    assert "judged" in (results / "report.md").read_text(encoding="utf-8")
    assert "Good answers" in (results / "report.html").read_text(encoding="utf-8")
    (found,) = json.loads((results / "card.json").read_text(encoding="utf-8"))["quality"]
    assert (found["num_requests"], found["num_good"], found["num_bad"]) == (3, 0, 3)
    again = specprof("run", path, "--results", tmp_path)
    assert again.returncode == 0
    assert "judging" not in again.stdout
    study = results / "study.yaml"
    study.write_text(study.read_text(encoding="utf-8").replace(str(ROOT), "/nowhere"), encoding="utf-8")
    assert specprof("report", results).returncode == 0
