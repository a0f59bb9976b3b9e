"""The Python on the pages runs, and prints what the pages say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pytest

from tests.docs.code import cells, run_cells
from tests.docs.pages import MANUAL, name_of
from tests.docs.shell import Shell

WITH_CODE = [page for page in MANUAL if cells(page)]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A page may show the log and draw: neither outlives it."""
    mpl.use("agg")
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_page_for_notebooks_has_code() -> None:
    assert "docs/notebooks.md" in map(name_of, WITH_CODE)


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(900)  # one of them measures a study
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_python_runs_and_prints_what_is_shown(page: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.chdir(shell.folder)
    for cell, printed in run_cells(page):
        place = f"{name_of(page)}:{cell.code.line}"
        if cell.shown is not None:
            assert printed == cell.shown.text, f"{place}: run 'python -m tests.docs.consoles {name_of(page)}'"
        else:
            assert not printed, f"{place}: prints what the page does not show"
    plt.close("all")
