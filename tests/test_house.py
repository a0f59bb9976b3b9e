"""The house rules that can be counted: size of files and functions, and a docstring on whatever is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.running import ROOT

PACKAGE = ROOT / "specprof"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

# Whatever is longer has its reason here; a name that has become short enough, or is gone, must leave.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {
    "analyse/cell.py:cell_figures": "one line for each of the figures that a cell has",
}

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below a node, methods as `Class.method`; nested ones are part of what they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{name}{child.name}.")
        else:
            yield from functions(child, name)


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, its docstring left out: what has to be read to follow it."""
    first = function.body[0]
    says = ast.get_docstring(function) is not None
    return (function.end_lineno or 0) - function.lineno + 1 - (says and (first.end_lineno or 0) - first.lineno + 1)


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lines = {module: len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > MAX_FILE_LINES}.keys() == LONG_FILES.keys()


def test_no_function_is_longer_than_a_screen() -> None:
    lines = {
        f"{module}:{name}": num_lines(function) for module in MODULES for name, function in functions(tree(module))
    }
    assert {name: n for name, n in lines.items() if n > MAX_FUNCTION_LINES}.keys() == LONG_FUNCTIONS.keys()


@pytest.mark.parametrize("module", MODULES)
def test_whatever_is_public_says_what_it_is(module: str) -> None:
    body = tree(module)
    assert ast.get_docstring(body), "the module itself"
    unsaid = [
        name
        for name, node in _public(body)
        if not ast.get_docstring(node) and not any(_is_overload(decorator) for decorator in node.decorator_list)
    ]
    assert not unsaid


def _public(node: ast.Module | ast.ClassDef, name: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public classes and functions of a module, and the public methods of those classes."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name[0] != "_":
            yield f"{name}{child.name}", child  # type: ignore[misc]
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{child.name}.")


def _is_overload(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "overload"


def test_the_counting_itself() -> None:
    method = '    def f(self):\n        """One.\n        Two."""\n        return 1\n'
    body = ast.parse(f"class A:\n{method}\n\ndef g(): ...\n")
    assert [(name, num_lines(function)) for name, function in functions(body)] == [("A.f", 2), ("g", 1)]
    assert [name for name, _ in _public(body)] == ["A", "A.f", "g"]
