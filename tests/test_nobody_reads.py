"""Output that nobody reads any more, or that nothing takes: a command does what it was asked for, and says so."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import ROOT, measured_study, sealed

STUDY = f"""
study: unread
engine: {{kind: sim, preset: small, time_scale: 50}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 8}}}}
concurrency: [1]
prompts: 4
"""
NUM_CELLS = 4
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as it is everywhere
REPORT = ("report.html", "report.md", "card.json")
UNREAD = ("pipe", "terminal")


@contextmanager
def unread(kind: str) -> Iterator[int]:
    """A descriptor to write to: a pipe, or a terminal, whose other end is closed."""
    theirs, ours = os.pipe() if kind == "pipe" else pty.openpty()
    os.close(theirs)
    try:
        yield ours
    finally:
        os.close(ours)


def specprof(*arguments: str | Path, to: str, errors_to_it: bool = False) -> subprocess.CompletedProcess[str]:
    """A command whose output goes where nobody reads, its errors as well if they are to."""
    with unread(to) as nobody:
        return subprocess.run(
            [sys.executable, "-m", "specprof.cli", *map(str, arguments)],
            env=BUFFERED,
            stdin=subprocess.DEVNULL,
            stdout=nobody,
            stderr=nobody if errors_to_it else subprocess.PIPE,
            text=True,
            check=False,
            timeout=600,
        )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = measured_study(tmp_path_factory.mktemp("unread"), "unread", STUDY)
    shutil.copy(ROOT / "configs" / "cost-reversal.yaml", folder / "cost.yaml")  # its page is written beside it
    return folder


@pytest.mark.parametrize("errors_to_it", [False, True])
@pytest.mark.parametrize("to", UNREAD)
def test_a_run_measures_to_its_end_and_reports(to: str, errors_to_it: bool, tmp_path: Path) -> None:
    config = tmp_path / "study.yaml"
    config.write_text(STUDY)
    run = specprof("run", config, "--results", tmp_path, to=to, errors_to_it=errors_to_it)
    assert (run.returncode, run.stderr or "") == (0, "")
    assert len(sealed(tmp_path / "unread")) == NUM_CELLS
    assert all((tmp_path / "unread" / name).is_file() for name in REPORT)


def test_a_terminal_that_goes_away_midway_takes_no_cell_with_it(tmp_path: Path) -> None:
    """Its bars are drawn by a thread, which must not fall silent with a traceback either."""
    config = tmp_path / "study.yaml"
    config.write_text(STUDY)
    command = [sys.executable, "-m", "specprof.cli", "run", str(config), "--results", str(tmp_path)]
    theirs, ours = pty.openpty()
    with (tmp_path / "errors").open("w+") as said:
        environment = {**BUFFERED, "TERM": "xterm-256color"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=ours, stderr=said, env=environment) as run:
            os.close(ours)
            os.read(theirs, 1)  # something is drawn
            os.close(theirs)
        said.seek(0)
        assert (run.returncode, said.read()) == (0, "")
    assert len(sealed(tmp_path / "unread")) == NUM_CELLS


@pytest.mark.parametrize("to", UNREAD)
def test_a_report_writes_its_files_and_ends_quietly(to: str, results: Path) -> None:
    for name in REPORT:
        (results / name).unlink()
    told = specprof("report", results, to=to)
    assert (told.returncode, told.stderr) == (0, "")
    assert all((results / name).is_file() for name in REPORT)


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "plan {root}/configs/demo.yaml",
        "report {results} --format json",
        "compare {results} {results} --format json",
        "cost {results}/cost.yaml",
        "roofline --format json",
    ],
)
def test_every_command_ends_as_if_somebody_had_read_to_the_end(command: str, results: Path) -> None:
    told = specprof(*command.format(root=ROOT, results=results).split(), to="pipe")
    assert (told.returncode, told.stderr) == (0, "")


def test_what_is_refused_is_told_where_somebody_reads_still(results: Path) -> None:
    told = specprof("report", results, "--format", "xml", to="pipe")
    assert told.returncode == 2
    assert told.stderr.startswith("specprof: ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_our_signs_costs_no_report(encoding: str, results: Path) -> None:
    (results / "report.html").unlink()
    told = subprocess.run(
        [sys.executable, "-m", "specprof.cli", "report", str(results)],
        env={**BUFFERED, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"Report: " in told.stdout
    assert (results / "report.html").is_file()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_the_same_text_in_every_encoding(encoding: str) -> None:
    r"""RFC 8259, 7: any character may be written as one or two \uXXXX."""
    text = "代码 é \U0001f600 →"
    script = f"from specprof.cli.outlet import outlasting_readers as o\nwith o(): print('\"' + {text!r} + '\"')"
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**BUFFERED, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=True,
    )
    assert json.loads(told.stdout.decode(encoding)) == text


def test_a_shell_may_close_both_streams(results: Path) -> None:
    (results / "report.html").unlink()
    closed = ["bash", "-c", '"$@" >&- 2>&-', "bash", sys.executable, "-m", "specprof.cli"]
    for options in ([], ["--format", "json"]):
        report = [*closed, "report", str(results), *options]
        assert subprocess.run(report, env=BUFFERED, check=False).returncode == 0
    assert (results / "report.html").is_file()


@pytest.mark.parametrize(
    "command", ["report {results}", "roofline --format json", "cost {results}/cost.yaml --format json"]
)
def test_a_full_disk_under_the_output_is_told_once(command: str, results: Path) -> None:
    """Unlike a reader that has gone it is no end that anybody chose."""
    arguments = command.format(root=ROOT, results=results).split()
    with Path("/dev/full").open("w") as full:
        whole = [sys.executable, "-m", "specprof.cli", *arguments]
        told = subprocess.run(whole, env=BUFFERED, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert told.returncode == 2
    assert told.stderr.startswith("specprof: ")
    assert told.stderr.count("No space left on device") == 1
    assert told.stderr.count("\n") == 1
