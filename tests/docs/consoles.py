"""Writes what the commands and the Python on the pages print: `python -m tests.docs.consoles [PAGE…]`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.docs.code import run_cells
from tests.docs.pages import MANUAL, commands
from tests.docs.shell import How, Shell, treatment, workplace


def rewritten(page: Path, shell: Shell) -> str:
    """A page with the output that each of its console commands and blocks of Python really has."""
    text, at = page.read_text(encoding="utf-8"), 0
    for command in commands(page):
        if treatment(command.line) is How.LEFT_OUT:
            continue
        done = shell.type(command.line)
        if command.output is not None:
            at = text.index(f"$ {command.line}\n{command.output}", at) + len(f"$ {command.line}\n")
            text = text[:at] + done.output + text[at + len(command.output) :]
    with contextlib.chdir(shell.folder):
        for cell, printed in run_cells(page):
            at = text.index(cell.code.text) + len(cell.code.text)
            if cell.shown is not None:
                begin = text.index("```text\n", at) + len("```text\n")
                text = text[:begin] + printed + text[begin + len(cell.shown.text) :]
    return text


def main(names: list[str]) -> None:
    """Rewrite the named pages, or all."""
    with tempfile.TemporaryDirectory() as folder:
        shell = workplace(Path(folder))
        for page in [Path(name).resolve() for name in names] or MANUAL:
            text = rewritten(page, shell)
            if text != page.read_text(encoding="utf-8"):
                page.write_text(text, encoding="utf-8")
                print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
