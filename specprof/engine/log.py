"""What an engine's log says: the line worth showing while it starts, and the one cause behind its death.

vLLM is several processes writing into one log, and a failure in one is reported again by each process above it. The
first traceback is the news; the rest are messengers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(
    r"^(?:\((?P<who>[^()]+ pid=\d+)\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?)?"
    r"(?P<text>.*)$"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Dead|Failed)\w*(?::|$)|^Exception:")
_USAGE_ERROR = re.compile(r"^[\w.-]+(?:\.py)?(?: \w+)?: error: (?P<message>.+)$")
_MESSENGERS = (
    "engine core initialization failed",
    "workerproc initialization failed",
    "enginedeaderror",
    "enginecore encountered an issue",
    "enginegenerateerror",
    "executor failed",
    "cancellederror",
    "keyboardinterrupt",
    "systemexit",
    "brokenpipeerror",
)
_DULL = re.compile(
    r"^\s|^$|^Traceback|█|▀|^Route: |Attempted to load weight|warnings\.warn|Warning: |^INFO:  |^non-default args"
)
_PYDANTIC_TAIL = re.compile(r"\s*\[type=.*$")
_TAIL_BYTES = 64 << 10
_MOST_BYTES = 8 << 20
_LONGEST_CAUSE = 400
_LONGEST_PROGRESS = 110


def root_cause(log: Path) -> str | None:
    """Why the engine failed, in one line, or None where the log holds no error."""
    return cause_in(_read(log, _MOST_BYTES))


def progress(log: Path) -> str | None:
    """The last line that tells a person something, without prefix, or None for an empty log."""
    for line in reversed(re.split(r"[\r\n]+", _read(log, _TAIL_BYTES))):
        text = _parts(line)[2]
        if not _DULL.search(text):
            return text[:_LONGEST_PROGRESS]
    return None


def cause_in(text: str) -> str | None:
    """The first exception that is not a messenger, else a usage error, else the last error line, else a messenger."""
    exceptions = list(_exceptions(text))
    for exception in exceptions:
        if not any(messenger in exception.lower() for messenger in _MESSENGERS):
            return exception
    errors = [shown for line in text.splitlines() if (shown := _error_line(line))]
    said = errors or exceptions
    return said[-1] if said else None


def last_exception(text: str) -> str | None:
    """The exception that ended a single process, given its stderr."""
    exceptions = list(_exceptions(text))
    return exceptions[-1] if exceptions else cause_in(text)


def _error_line(line: str) -> str | None:
    _, level, text = _parts(line)
    if usage := _USAGE_ERROR.match(text):
        return _one_line(usage["message"])
    return _one_line(text) if level in ("ERROR", "CRITICAL") and not text.startswith((" ", "Traceback")) else None


def _exceptions(text: str) -> Iterator[str]:
    """The closing lines of every traceback, with their indented continuation, each process read on its own."""
    open_tracebacks: set[str] = set()
    closing: dict[str, list[str]] = {}
    for line in text.splitlines():
        who, level, content = _parts(line)
        who = f"{who} {level}"
        if who in closing:
            if content.startswith(" ") or (content and not _starts_anew(content)):
                closing[who].append(content)
                continue
            yield _one_line(" ".join(closing.pop(who)))
        if content.startswith("Traceback (most recent call last)"):
            open_tracebacks.add(who)
        elif who in open_tracebacks and _EXCEPTION.match(content):
            open_tracebacks.discard(who)
            closing[who] = [content]
    for parts in closing.values():
        yield _one_line(" ".join(parts))


def _starts_anew(content: str) -> bool:
    return bool(_EXCEPTION.match(content)) or content.startswith(
        ("Traceback", "During handling", "The above", "(", "[")
    )


def _parts(line: str) -> tuple[str, str, str]:
    """Who wrote the line, at what level ('' for bare output), and what it says."""
    match = _LINE.match(line)
    if match is None:
        return "", "", line
    return match["who"] or "", match["level"] or "", match["text"].rstrip()


def _one_line(text: str) -> str:
    text = " ".join(_PYDANTIC_TAIL.sub("", text).split())
    return text if len(text) <= _LONGEST_CAUSE else text[: _LONGEST_CAUSE - 1] + "…"


def _read(log: Path, most: int) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
