"""Commands that only read a study file load no frame, statistics, picture or engine library. No clock is asked."""

from __future__ import annotations

import subprocess
import sys

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
