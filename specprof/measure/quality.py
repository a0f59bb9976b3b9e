"""Marking: is each sealed text any good? Once, after measuring, so that a report needs neither prompts nor checks.

What a model wrote, and the schema it is held against, can keep a check busy without end or bring its parser down. So
the built-in checks run in a process of their own, which the system's own alarm ends: the text is then not judged, and
the next one gets a new process. A command of the user's own runs without a shell, with none of our secrets in its
environment, and is ended with everything it started when its time is up.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from specprof.columns import RequestColumns
from specprof.errors import InputError
from specprof.records import Cell, Phase, Prompt, Role, TextMarks
from specprof.store import Store
from specprof.study.config import Study, fingerprint
from specprof.study.load import BuiltIn, Command, Quality
from specprof.study.plan import Plan
from specprof.study.quality import RULES, Answer, Mark, can_judge, checks_of, in_words, mark

LIMIT_S = 10.0  # of a processor, for one text under a built-in check: a busy machine judges as an idle one does
PATIENCE = 10  # times as long may pass, for a check that waits for something
GRACE_S = 1.0
JUDGED_ROLES = (Role.FIGURE, Role.OPEN)

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")  # to a command: nothing that is a secret
_COLUMNS = ["prompt_id", "phase", "error", "text", "token_ids"]

Checks = Mapping[str, Quality]  # by content


def require_runnable(study: Study) -> None:
    """Raise InputError, before anything is measured, for a command that is not there to be started."""
    for tag, check in checks_of(study).items():
        if isinstance(check, Command) and _program(check) is None:
            raise InputError(
                f"workload {tag}: quality: command: {check.command[0]!r} is no program that can be started (looked in "
                f"PATH; a path counts from {Path.cwd()}). Correct it, or make it executable."
            )


def unjudged(study: Study, plan: Plan, store: Store) -> tuple[Cell, ...]:
    """The sealed cells whose texts have not been judged by the checks the study has now."""
    return tuple(
        cell
        for cell in plan.cells
        if cell.role in JUDGED_ROLES
        and (checks := _checks(study, cell))
        and store.is_sealed(cell.key)
        and not store.is_judged(cell.key, _digest(checks))
    )


def judge_study(study: Study, plan: Plan, store: Store, on_text: Callable[[], None] = lambda: None) -> None:
    """Judge every sealed text that is not judged yet, cell by cell. Raises InputError if a command cannot be started.

    A check that changed since is asked anew: marks are made from sealed texts, and the newer ones take their place.
    """
    with Marker() as marker:
        for cell in unjudged(study, plan, store):
            checks = _checks(study, cell)
            found = []
            for judged in _marks(cell, store.cell(cell.key).requests, checks, plan.prompts, marker):
                found.append(judged)
                on_text()
            marks = TextMarks(
                checks={tag: in_words(check) for tag, check in checks.items()},
                digest=_digest(checks),
                good=tuple(judged.good for judged in found),
                why=tuple(judged.why for judged in found),
            )
            store.seal_quality(cell.key, marks)


def _checks(study: Study, cell: Cell) -> Checks:
    """The checks that can tell good from bad in this cell, by content."""
    tags = set(cell.prompt_tags) or {cell.tag}
    return {tag: check for tag, check in checks_of(study).items() if tag in tags and can_judge(check, cell.stop)}


def _digest(checks: Checks) -> str:
    """Hash of what the checks are: a script that was edited is another check."""
    return fingerprint({tag: _identity(check) for tag, check in checks.items()})


def _identity(check: Quality) -> Any:
    if not isinstance(check, Command):
        return {"check": check, "rules": RULES}
    named = [_program(check), *(Path(argument) for argument in check.command[1:])]
    return {**check.model_dump(mode="json"), "sha256": [_content_hash(path) for path in named]}


def _content_hash(path: Path | None) -> str | None:
    """sha256 of a file that can be read; an argument need not be one."""
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - unlike Path.is_file, False for a name the system refuses
        return None
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return None


def _marks(
    cell: Cell, requests: RequestColumns, checks: Checks, prompts: Mapping[str, Prompt], marker: Marker
) -> Iterator[Mark]:
    """One mark per row of a cell's requests. In an open loop every text counts, whatever it was sent for."""
    for row in requests.select(_COLUMNS).to_pylist():
        prompt = prompts[row["prompt_id"]]
        check = checks.get(prompt.tag)
        if row["phase"] != Phase.MEASURED.value and cell.arrivals is None:
            yield Mark(None, "was not measured")
        elif row["error"] is not None:
            yield Mark(None, "failed")
        elif check is None:
            yield Mark(None, f"no check for {prompt.tag}")
        else:
            answer = Answer(prompt, row["text"] or "", tuple(row["token_ids"] or ()), cell.chat)
            yield ask(check, answer.text) if isinstance(check, Command) else marker.mark(check, answer)


# -- the built-in checks, in a process of their own -------------------------------------------------------------------


class Marker:
    """Marks texts by the built-in checks, one at a time, each within `limit_s` of a processor. A context manager."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: tuple[Any, Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def mark(self, check: BuiltIn, answer: Answer) -> Mark:
        """What the check says; a text it cannot finish with, or that ends its process, is not judged."""
        _, connection = self._running or self._start()
        try:
            connection.send((check, answer))
            judged: Mark = connection.recv()
        except (EOFError, OSError):
            return Mark(None, self._why(self._stop()))
        return judged

    def _why(self, exit_code: int | None) -> str:
        """Why a text was not judged, by how the process ended that was to do it."""
        if exit_code == -signal.SIGPROF:
            return f"took more than {self._limit_s:g} s of a processor to judge"
        if exit_code == -signal.SIGALRM:
            return f"was not judged within {PATIENCE * self._limit_s:g} s"
        return "brought the check down"

    def _start(self) -> tuple[Any, Connection]:
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads of whoever runs us, half
        connection, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs, self._limit_s), daemon=True)
        process.start()
        theirs.close()
        self._running = process, connection
        return self._running

    def _stop(self) -> int | None:
        """End the process, if there is one; its exit code."""
        if self._running is None:
            return None
        process, connection = self._running
        self._running = None
        connection.close()  # which is what ends a process that listens; one that does not is killed
        process.join(GRACE_S)
        process.kill()
        process.join()
        code: int | None = process.exitcode
        return code


def _serve(connection: Connection, limit_s: float) -> None:
    """Answer until nobody asks any more. Whatever holds the interpreter, the system's alarms end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run that is interrupted closes the connection
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(EOFError, OSError):
        while True:
            check, answer = connection.recv()
            _set_alarms(limit_s)
            judged = _mark_safely(check, answer)
            _set_alarms(0)
            connection.send(judged)


def _set_alarms(limit_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * limit_s)


def _mark_safely(check: BuiltIn, answer: Answer) -> Mark:
    try:
        return mark(check, answer)
    except Exception as problem:  # noqa: BLE001 - a stranger's schema raises whatever it likes in the validator
        return Mark(None, f"cannot be judged: {type(problem).__name__}: {problem}"[:200])


# -- the user's own ---------------------------------------------------------------------------------------------------


def ask(check: Command, text: str) -> Mark:
    """Whether the user's command takes a text for good: it reads it as UTF-8 on standard input, and exits with 0.

    Raises InputError where the command cannot be started.
    """
    with tempfile.TemporaryFile() as stdin:  # and no pipe: whoever does not read it blocks nobody
        stdin.write(text.encode(errors="replace"))
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                check.command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as problem:
            raise InputError(
                f"quality: command: {check.command[0]!r} cannot be started ({problem.strerror}). Correct it; "
                "what is measured is kept, and the same run then judges it."
            ) from None
        try:
            status = process.wait(check.timeout)
        except subprocess.TimeoutExpired:
            return Mark(False, f"{in_words(check)} did not end within {check.timeout:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ended = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
    return Mark(True) if status == 0 else Mark(False, f"{in_words(check)} {ended}")


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def _program(check: Command) -> Path | None:
    found = shutil.which(check.command[0])
    return Path(found) if found is not None else None
