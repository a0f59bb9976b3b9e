"""One thing the doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """ok: nothing to do. warn: it runs, but read the remedy. fail: the study cannot be measured like this."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found there, and what to do about it ("" where there is nothing to do)."""

    name: str
    outcome: Outcome
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, Outcome.OK, found)


def warn(name: str, found: str, remedy: str) -> Check:
    """It runs, with a reservation."""
    return Check(name, Outcome.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """It cannot run."""
    return Check(name, Outcome.FAIL, found, remedy)
