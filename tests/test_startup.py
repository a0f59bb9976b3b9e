"""Commands that only read a study file load no frame, statistics, picture or engine library. No clock is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT

HEAVY = {
    "aiohttp",
    "datasets",
    "jinja2",
    "jsonschema",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "ray",
    "scipy",
    "seaborn",
    "torch",
    "transformers",
    "vllm",
}
SCRIPT = """
import sys
from specprof.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [["--help"], ["plan", "--help"], ["plan", "configs/demo.yaml"]])
def test_a_command_that_reads_no_results_loads_no_heavy_library(command: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(told.stderr.split())
    assert "specprof" in loaded
    assert not HEAVY & loaded


def test_an_interrupt_that_a_library_would_swallow_while_it_loads_still_ends_a_run(tmp_path: Path) -> None:
    """As pydantic's core does where it asks Python for a pattern."""
    study = tmp_path / "study.yaml"
    study.write_text(
        f"study: stopped\nengine: {{kind: sim, preset: small}}\narms: {{'off': {{}}}}\n"
        f"workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]\n"
        "protocols: {forced: {stop: forced, output_tokens: 8}}\nconcurrency: [1]\nprompts: 2\n"
    )
    script = """
import signal, sys
from specprof.cli import main

class Swallows:
    def find_spec(self, name, path, target=None):
        if name == "specprof.study.config":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Swallows())
main()
"""
    command = [sys.executable, "-c", script, "run", str(study), "--results", str(tmp_path), "--no-report"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 130
    assert "interrupted" in told.stderr


@pytest.mark.parametrize(
    ("error", "told_of"),
    [
        ('TypeError("a schema cannot be built")', False),
        ('OSError(4, "Interrupted system call")', False),
        ('OSError(13, "Permission denied", "a.so")', False),
        ('type("SchemaError", (Exception,), {})("a schema cannot be built")', False),
        ('ValueError("the cell\\nhas no name")', True),
    ],
)
def test_an_interrupt_that_a_library_turns_into_an_error_of_its_own_ends_any_command_as_one(
    error: str, told_of: bool
) -> None:
    """What no loading library raises may be a fault of ours in what tidies up: it is told, on one line."""
    script = f"""
import signal, sys
from specprof.cli import main

class Translates:
    def find_spec(self, name, path, target=None):
        if name == "specprof.study.config":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as interrupt:
                raise {error} from interrupt

sys.meta_path.insert(0, Translates())
main()
"""
    command = [sys.executable, "-c", script, "plan", str(ROOT / "configs" / "demo.yaml")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, "Traceback" in told.stderr, "interrupted" in told.stderr) == (130, False, True)
    line = "specprof: while it was being interrupted: ValueError: the cell has no name\n"
    assert told.stderr.startswith(line) == told_of
    assert told.stderr.count("\n") == 1 + told_of
