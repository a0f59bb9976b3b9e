"""What can go wrong, and the exit code each kind ends in.

SpecprofError
├── InputError            2   a study file, suite, option or result the user can correct
│   └── StoreError        2   a results folder that is of another study, version or run
├── EngineError           3   the engine failed; carries its cause and log path
│   ├── EngineStartError      it never became ready
│   └── EngineDied            it was ready and is gone
├── ClientError           3   a client that was to send requests never became ready
└── Interrupted         130   stopped by the user; sealed cells are kept

Every message says what is wrong, where, and what to do next.
"""

from __future__ import annotations

from pathlib import Path

LONGEST_SHOWN = 80  # characters of what is wrong, where it may be of any length
LONGEST_REASON = 300  # of why, in a library's words


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    """A text that may be of any length, its end left out where it is too long to be read."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def reason(problem: Exception) -> str:
    """What an error says, on one line, without what a file may hold beyond that."""
    return shortened(" ".join(str(problem).split()), LONGEST_REASON)


class SpecprofError(Exception):
    """Root of everything specprof raises on purpose."""

    exit_code = 1


class InputError(SpecprofError):
    """Something the user wrote cannot be used as it stands."""

    exit_code = 2


class StoreError(InputError):
    """A results folder cannot be used for what was asked."""


class EngineError(SpecprofError):
    """The engine failed. `cause` is its own root cause in one line, `log` where the rest stands."""

    exit_code = 3

    def __init__(self, what: str, *, cause: str, log: Path | None = None) -> None:
        self.what = what
        self.cause = cause
        self.log = log
        log_line = f" Full log: {log}" if log is not None else ""
        super().__init__(f"{what} Cause: {cause}{log_line}")


class EngineStartError(EngineError):
    """The engine never became ready."""


class EngineDied(EngineError):
    """The engine was ready and then went away."""


class ClientError(SpecprofError):
    """A client that was to send requests never became ready, or cannot work where it is."""

    exit_code = 3


class Interrupted(SpecprofError):
    """The user stopped the run. What was sealed stays sealed."""

    exit_code = 130
