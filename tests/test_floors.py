"""The house of docs/architecture.md: a module imports its own floor and those above it; the wings meet only on disk."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specprof"

VOCABULARY = {
    "errors",
    "interrupts",
    "records",
    "ragged",
    "columns",
    "store",
    "version",
    "specprof",
}  # `specprof`: its version
MAY_IMPORT = {
    "errors": set(),
    "interrupts": set(),
    "version": {"specprof"},
    "records": set(),
    "ragged": set(),
    "columns": {"records", "ragged"},
    "store": {"errors", "records", "columns", "store"},
    "study": VOCABULARY | {"study"},
    "engine": VOCABULARY | {"study", "engine"},
    "measure": VOCABULARY | {"study", "engine", "measure"},
    "analyse": VOCABULARY | {"study", "analyse"},
    "decide": VOCABULARY | {"study", "analyse", "decide"},
    "publish": VOCABULARY | {"study", "analyse", "decide", "publish"},
    "api": VOCABULARY | {"study", "engine", "measure", "analyse", "decide", "publish", "api"},  # both wings
}
BOTTOM = {"cli", "terminal"}


def modules() -> dict[str, Path]:
    """Dotted names below `specprof` of every module of the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(path: Path) -> set[str]:
    """What a module imports of ours, wherever in it, as names below `specprof`; the package itself is `specprof`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor they reach for"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in found if floor(name) == "specprof"}
    return {name.removeprefix("specprof.") for name in ours}


def floor(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", [m for m in modules() if m != "__init__"])
def test_a_module_imports_only_its_own_floor_and_those_above_it(module):
    if floor(module) in BOTTOM:
        return
    allowed = MAY_IMPORT[floor(module)]
    assert {floor(name) for name in imports(modules()[module])} <= allowed


@pytest.mark.parametrize("module", [m for m in modules() if floor(m) not in BOTTOM])
def test_nothing_rests_on_the_command_line(module):
    assert not {floor(name) for name in imports(modules()[module])} & BOTTOM


def test_the_public_names_come_from_the_floors_that_make_them():
    assert {floor(name) for name in imports(modules()["__init__"])} <= {"api", "study", "errors"}


def test_every_module_stands_on_a_known_floor():
    assert {floor(m) for m in modules()} - {"__init__"} <= set(MAY_IMPORT) | BOTTOM


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("engine.sim")])
def test_the_simulator_shares_no_formula_with_the_analysis(module):
    """One formula used by both would make the truth test a tautology."""
    allowed = ("records", "errors", "engine.protocol", "engine.sim")
    for name in imports(modules()[module]):
        assert any(name == room or name.startswith(f"{room}.") for room in allowed), name


def test_a_command_loads_only_what_it_needs():
    """`specprof --help` in half a second: no tensor, frame, engine or statistics library at the door."""
    script = "import sys, specprof.cli; print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    heavy = {
        "torch",
        "pandas",
        "vllm",
        "pyarrow",
        "scipy",
        "numpy",
        "aiohttp",
        "matplotlib",
        "datasets",
        "transformers",
    }
    assert not heavy & set(told.stdout.split())


def test_the_door_is_light_in_our_own_modules_too():
    """Every TAB and every `--help` imports these: nothing that makes dozens of dataclasses or models."""
    script = "import sys, specprof.cli; print(*sorted(m for m in sys.modules if m.startswith('specprof.')))"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    ours = {floor(name.removeprefix("specprof.")) for name in told.stdout.split()}
    assert ours <= {"cli", "errors", "interrupts", "publish"}
    assert "specprof.publish.report" not in told.stdout.split()
