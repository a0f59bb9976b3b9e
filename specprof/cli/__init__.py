"""The command line: wires and prints, nothing else. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Annotated, NoReturn

from specprof.errors import InputError, Interrupted, SpecprofError, reason

try:
    import typer

    from specprof.cli import measuring, reading, tools
    from specprof.cli.app import app, console, errors
    from specprof.cli.outlet import outlasting_readers
except KeyboardInterrupt:  # loading takes a tenth of a second: nothing is begun, and there is nothing to tell
    sys.exit(Interrupted.exit_code)

__all__ = ["app", "main", "measuring", "reading", "tools"]  # commands register themselves, in this order


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # one that takes no more, wherever it was written to
_PLACE = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)  # one that was named and that the system does not let us have
_OF_LOADING = (ImportError, AttributeError, TypeError, SystemError, OSError)  # and pydantic's SchemaError


def main() -> NoReturn:
    """Entry point: every SpecprofError becomes its message on stderr and its exit code."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own keeps tens of megabytes
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a command as Ctrl-C does
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup it is not
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with outlasting_readers():
        code = _code_of_command()
        if code == Interrupted.exit_code:
            errors.print(
                "specprof: interrupted. Sealed cells are kept; the same command goes on from there.", soft_wrap=True
            )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)  # what is left to do needs no tidying up
    sys.exit(code)


def _code_of_command() -> int:
    """Do what the command line says; the exit code, once what is wrong is told."""
    try:
        code = app(standalone_mode=False)  # returns the code of a typer.Exit, and of Ctrl-C
        sys.stdout.flush()  # here, where a disk that takes no more is told
    except SpecprofError as problem:
        _complain(problem)
        return problem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return Interrupted.exit_code
    except Exception as problem:
        if _hides_interrupt(problem):
            return Interrupted.exit_code
        if (told := _told(problem)) is None:
            raise
        if told:  # a bare `specprof` has shown its help, and says no more
            _complain(told)
        return InputError.exit_code
    return code or 0


def _told(problem: Exception) -> str | None:
    """What to say of the system's refusals and of the command-line parser's own errors; None of any other."""
    if not isinstance(problem, OSError):
        return str(problem.format_message()) if hasattr(problem, "format_message") else None
    if problem.errno in _DISK:
        return (
            f"{problem.filename or 'a file'}: cannot be written ({problem.strerror}). Sealed cells are safe; free "
            "space, then run the same command again."
        )
    if problem.errno in _PLACE and problem.filename is not None:
        return f"{problem.filename}: cannot be reached ({problem.strerror}). Name a file or folder that can."
    return None


def _hides_interrupt(problem: Exception) -> bool:
    """Whether an interrupt was turned into this, as libraries do that are loading when it comes.

    What no loading library raises is told: it may be a fault in what tidies up.
    """
    cause: BaseException | None = problem
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    kind = type(problem).__name__
    if cause is not None and not isinstance(problem, _OF_LOADING) and not kind.endswith("SchemaError"):
        _complain(f"while it was being interrupted: {kind}: {reason(problem)}")
    return cause is not None


def _complain(problem: object) -> None:
    errors.print(f"specprof: {problem}", style="red", soft_wrap=True)


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
