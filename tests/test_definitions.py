"""docs/definitions.md names a source for every claim: those that are installed here are there, by file and by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.running import ROOT

PAGE = ROOT / "docs" / "definitions.md"
TOOLS = ("specprof", "`vllm bench serve`", "aiperf", "guidellm")


def rows() -> Iterator[tuple[str, str]]:
    """The tool and the source of every row that makes a claim."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        columns = [column.strip() for column in line.strip("|").split(" | ")]
        tool = next((tool for tool in TOOLS if columns[0].startswith(tool)), None)
        if line.startswith("| ") and tool is not None and len(columns) > 2 and ".py" in columns[-1]:
            yield tool, columns[-1]


def sources(of: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each file that the rows of one tool name, and the names they say are in it."""
    found = []
    for tool, column in rows():
        if tool != of:
            continue
        names: list[str] = []
        for word in reversed(re.findall(r"`([^`]+)`", column)):
            if word.endswith(".py"):
                found.append((word, tuple(names)))
                names = []
            else:
                names.append(word)
    return found


def installed(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def test_every_row_names_its_source() -> None:
    claims = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(("| spec", "| `vllm"))]
    with_source = [tool for tool, _ in rows() if tool in TOOLS[:2]]
    assert len(with_source) == len(claims) - 1  # the table of versions names vLLM too
    assert {tool for tool, _ in rows()} == set(TOOLS)


@pytest.mark.parametrize(("tool", "package"), [("specprof", "specprof"), ("`vllm bench serve`", "vllm")])
def test_the_named_code_is_there(tool: str, package: str) -> None:
    root = installed(package)
    if root is None:
        pytest.skip(f"{package} is not installed")
    named = sources(tool)
    assert len(named) > 8
    for file, names in named:
        path = root / ("benchmarks" if package == "vllm" else "") / file
        text = path.read_text(encoding="utf-8")
        for name in names:
            inner = name.strip("()").split(".")[-1]
            assert re.search(rf"\b{re.escape(inner)}\b", text), f"{file} holds no {inner}"
