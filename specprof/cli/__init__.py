"""The command line: wires and prints, nothing else. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import errno
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from specprof.cli import measuring, reading, tools
from specprof.cli.app import app, console, errors
from specprof.errors import InputError, Interrupted, SpecprofError

__all__ = ["app", "main", "measuring", "reading", "tools"]  # commands register themselves, in this order


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # one that takes no more, wherever it was written to


def main() -> NoReturn:
    """Entry point: every SpecprofError becomes its message on stderr and its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False)  # returns the code of a typer.Exit, and of Ctrl-C
    except SpecprofError as problem:
        _complain(problem)
        code = problem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except OSError as problem:
        if problem.errno not in _DISK:
            raise
        _complain(
            f"{problem.filename or 'a file'}: cannot be written ({problem.strerror}). Sealed cells are safe; free "
            "space, then run the same command again."
        )
        code = InputError.exit_code
    except Exception as problem:
        if not hasattr(problem, "format_message"):  # not one of the command-line parser's own
            raise
        _complain(problem.format_message())
        code = InputError.exit_code
    if code == Interrupted.exit_code:
        errors.print(
            "specprof: interrupted. Sealed cells are kept; the same command goes on from there.", soft_wrap=True
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # what is left to do needs no tidying up
    sys.exit(code or 0)


def _complain(problem: object) -> None:
    errors.print(f"specprof: {problem}", style="red", soft_wrap=True)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _version(value: bool) -> None:
    if value:
        from specprof.version import version_line

        console.print(version_line())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Version.")] = False,
) -> None:
    del version
