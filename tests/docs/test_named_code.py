"""Modules, functions, gates, commands and options that the pages name are there, and what is there is named."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from specprof.cli import app
from tests.docs.pages import commands, headings, name_of
from tests.running import ROOT

PACKAGE = ROOT / "specprof"
GLOSSARY = ROOT / "docs" / "glossary.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
HOWTOS = ROOT / "docs" / "howto"
FINDERS = {"caution", "invalid", "found", "GateFinding"}  # how analysis says that a gate did not hold


def rows(page: Path) -> Iterator[list[str]]:
    """The cells of every table row of a page."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def named_code(page: Path) -> list[tuple[str, str | None]]:
    """Each file of ours that a table names, and what it says is in it."""
    found: list[tuple[str, str | None]] = []
    for *_, last in rows(page):
        for word in re.findall(r"`([^`]+)`", last):
            if word.endswith(".py"):
                found.append((word, None))
            elif found and re.fullmatch(r"\w+", word):
                found[-1] = (found[-1][0], word)
    return found


def test_the_glossary_s_formulas_are_computed_where_it_says() -> None:
    named = named_code(GLOSSARY)
    assert len(named) > 60
    for file, name in named:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        if name is not None:
            assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b|^{name} = ", text, flags=re.MULTILINE), (
                f"{file}: no {name}"
            )


def test_every_term_of_the_glossary_is_explained_once() -> None:
    terms = [term for first, *_ in rows(GLOSSARY) for term in re.findall(r"\*\*([^*]+)\*\*", first)]
    assert len(terms) > 60
    assert sorted(set(terms)) == sorted(terms)


def findings() -> set[tuple[int, str]]:
    """The number and name of every gate that analysis can close."""
    told = [
        tuple(constant(argument, path) for argument in node.args[:2])
        for path in (PACKAGE / "analyse").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FINDERS
    ]
    return {(gate, name) for gate, name in (pair for pair in told if len(pair) == 2) if gate and name}


def constant(argument: ast.expr, path: Path) -> Any:
    """What an argument is before anything runs: a literal, or a constant that its module knows; else None."""
    if isinstance(argument, ast.Name) and argument.id.isupper():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        return getattr(importlib.import_module(module), argument.id)
    return argument.value if isinstance(argument, ast.Constant) else None


def test_the_glossary_has_every_gate_and_no_other() -> None:
    table = {int(first): second.split(" · ") for first, second, *_ in rows(GLOSSARY) if first.isdigit()}
    assert {(gate, name) for gate, names in table.items() for name in names} == findings()
    assert sorted(table) == list(range(1, 16))


@pytest.mark.parametrize("page", [ARCHITECTURE, ROOT / "docs" / "README.md"], ids=name_of)
def test_the_places_that_the_picture_s_page_names_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for place in re.findall(r"`([\w./]+(?:\.py|/))`", text):
        beneath = (ROOT / place, PACKAGE / place, ROOT / "tests" / place)
        assert any(path.exists() for path in beneath), f"{name_of(page)}: {place}"


def test_the_architecture_names_every_floor() -> None:
    told = ARCHITECTURE.read_text(encoding="utf-8")
    for path in PACKAGE.iterdir():
        if path.is_dir() and (path / "__init__.py").is_file():
            assert f"`{path.name}/`" in told, path.name


def all_commands() -> Mapping[str, Any]:
    """Every command by the words that are typed, `prompts check` among them."""
    found: dict[str, Any] = {}
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {word}": below for word, below in inner.items()}
    return found


def howto(command: str) -> Path:
    return HOWTOS / f"{command.split(maxsplit=1)[0]}.md"


@pytest.mark.parametrize("command", all_commands())
def test_every_command_has_a_page_with_an_example_and_its_exit_codes(command: str) -> None:
    page = howto(command)
    assert page.is_file(), f"write docs/howto/{page.name}"
    assert headings(page)[0] == (1, f"specprof {command}")
    assert any(typed.line.startswith(f"specprof {command}") for typed in commands(page))
    assert re.search(r"exit codes?\b", page.read_text(encoding="utf-8"), flags=re.IGNORECASE)


@pytest.mark.parametrize("command", all_commands())
def test_the_options_that_a_page_explains_are_the_command_s(command: str) -> None:
    known = {
        option
        for parameter in all_commands()[command].params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    firsts = (first for first, *_ in rows(howto(command)) if first.startswith("`--"))
    named = {option for first in firsts for option in re.findall(r"(?<![\w-])--[\w-]+", first)}
    assert named <= known, sorted(named - known)


def test_the_index_of_how_tos_is_complete() -> None:
    index = (HOWTOS / "README.md").read_text(encoding="utf-8")
    assert all(f"[{command}]({howto(command).name})" in index for command in all_commands())
