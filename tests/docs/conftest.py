"""One shell for all pages of a test run: making its folder copies every committed result."""

from __future__ import annotations

import pytest

from tests.docs.shell import Shell, workplace


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return workplace(tmp_path_factory.mktemp("reader"))
