"""What the benchmarks share: a table as text, where and when it was made, and its section of docs/performance.md."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from specprof.version import git_commit


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def made(command: str, *packages: str) -> str:
    """One line: the command, the day, the machine, and the versions a number hangs on."""
    cores, memory = os.cpu_count() or 0, psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    commit = git_commit()
    return (
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {_processor()}, {cores} cores, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, {versions}{f', commit {commit}' if commit else ''}."
    )


def _processor() -> str:
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        told = None
    return told[1].strip() if told else platform.machine()


def add_write(parser: argparse.ArgumentParser) -> None:
    """The option every benchmark has."""
    parser.add_argument("--write", type=Path, help="a page, e.g. docs/performance.md: replace this benchmark's section")


def write_section(page: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name -->` and `<!-- /name -->`. Raises ValueError where the page lacks the two marks."""
    whole = page.read_text(encoding="utf-8")
    begins, ends = f"<!-- {name} -->", f"<!-- /{name} -->"
    if whole.count(begins) != 1 or whole.count(ends) != 1:
        raise ValueError(f"{page}: needs the marks {begins} and {ends} once each")
    before, rest = whole.split(begins)
    page.write_text(f"{before}{begins}\n{text.strip()}\n{ends}{rest.split(ends)[1]}", encoding="utf-8")
