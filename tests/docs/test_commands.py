"""What the documentation tells people to type works, and prints what the pages say it prints."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

from specprof.study.reading import parse_study
from tests.docs import shell as reader
from tests.docs.pages import MANUAL, Command, blocks, commands, name_of
from tests.docs.shell import How, Shell, treatment
from tests.running import ROOT, Run, started, wait_until

SIM_PAGE = ROOT / "docs" / "howto" / "sim.md"
TYPED = [page for page in MANUAL if list(commands(page))]


def test_there_is_something_to_type() -> None:
    assert {name_of(page) for page in TYPED} >= {"README.md", "docs/tutorial.md", "docs/attach.md"}


@pytest.mark.timeout(1800)  # dozens of processes, one after the other
@pytest.mark.parametrize("page", TYPED, ids=name_of)
def test_every_command_of_a_page_works_in_order(page: Path, shell: Shell) -> None:
    for command in commands(page):
        how = treatment(command.line)
        if how is How.LEFT_OUT:
            continue
        assert command.line.startswith(("specprof ", "cat ", "cp ")), (
            f"{command.place}: say in TREATMENTS how it is run"
        )
        done = shell.type(command.line)
        allowed = (0, 3) if how is How.MAY_LACK else (0,)
        assert done.code in allowed, f"{command.place}: {command.line}\n{done.errors}{done.output}"
        assert "Traceback" not in done.errors, f"{command.place}: {command.line}\n{done.errors}"
        if command.output is not None:
            same_output(command, done.output)


def same_output(command: Command, output: str) -> None:
    """Word for word, or of a command that speaks of the machine, check for check."""
    assert command.output is not None
    if command.line.startswith(reader.ABOUT_THIS_MACHINE):
        assert checks(command.output) == checks(output), command.place
    else:
        told = f"{command.place}: run 'python -m tests.docs.consoles {command.place.partition(':')[0]}' and look at it"
        assert output == command.output, told


def checks(output: str) -> list[str]:
    """The names of the doctor's checks."""
    return re.findall(r"^(?:ok  |warn|fail)  (.+?)  ", output, flags=re.MULTILINE)


def test_the_doctor_s_checks_are_found_in_its_output() -> None:
    shown = [c.output or "" for c in commands(ROOT / "docs" / "howto" / "doctor.md") if c.output is not None]
    assert all(len(checks(output)) >= 5 for output in shown)


def test_every_treatment_is_still_needed() -> None:
    assert reader.unused() == []
    assert all(reason for _, _, reason in reader.TREATMENTS)


def test_blocks_for_other_machines_hold_no_command_of_ours() -> None:
    """What stands in ```sh is for a cluster or another engine and is not run."""
    for page in MANUAL:
        for block in blocks(page, "sh"):
            assert not re.search(r"^\s*specprof ", block.text, flags=re.MULTILINE), f"{name_of(page)}:{block.line}"


def test_the_simulated_server_answers_what_its_page_asks() -> None:
    """The page's own commands, on a port that is free here."""
    typed = [command.line for command in commands(SIM_PAGE)]
    (serve,) = (line for line in typed if line.startswith("specprof sim "))
    asked = [line for line in typed if line.startswith("curl ")]
    assert len(asked) == 3
    speculation = re.search(r"--speculation '([^']+)'", serve)
    assert speculation is not None and " --port 8000 " in serve
    with started("sim", "--preset", "small", "--port", "0", "--speculation", speculation[1]) as run:
        wait_until(lambda: listens_on(run) is not None)
        models, completion, metrics = (answer(line.replace(":8000/", f":{listens_on(run)}/")) for line in asked)
    assert json.loads(models)["data"][0]["id"] == "sim-small"
    events = [line for line in completion.splitlines() if line.startswith("data: {")]
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events if '"choices":[{' in event)
    assert "vllm:spec_decode_num_drafts_total" in metrics


def listens_on(run: Run) -> str | None:
    """The port that a server says it took; it has said nothing until it listens."""
    said = os.pread(run.output.fileno(), 10_000, 0).decode()  # the child writes on where it was
    port = re.search(r" listens on http://127\.0\.0\.1:(\d+) ", said)
    return port and port[1]


def answer(curl: str) -> str:
    """What a curl line of the page gets, by its own address, header and data."""
    address = re.search(r"http://\S+", curl)
    data = re.search(r"-d '([^']+)'", curl)
    assert address is not None
    request = urllib.request.Request(address[0], data=data[1].encode() if data else None)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(response.read().decode())


def test_the_studies_in_the_documentation_are_valid(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each whole study by itself; a part of one, added to the study that the page has shown before."""
    monkeypatch.chdir(shell.folder)
    for page in MANUAL:
        whole = ""
        for block in blocks(page, "yaml"):
            place = f"{name_of(page)}:{block.line}"
            if re.search(r"^study:", block.text, flags=re.MULTILINE):
                whole = block.text
            else:
                assert whole, f"{place}: is part of no study on this page"
                whole += block.text
            parse_study(whole, place)
