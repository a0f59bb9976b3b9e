"""What a client costs before it measures anything: start-up, memory, and its size on disk."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.clients.measuring import ROOT, Load, first_heard_s

LOAD = Load(streams=64, requests=64, chunks=64, pace_ms=2.0)
PROBE_CHUNKS = 4  # an attached server is asked for 16 tokens first, to learn its dialect: no request of the load
SAMPLE_S = 0.05

STUDY = """
study: bench
engine: {{kind: attach, arms: {{"off": "{url}"}}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {root}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {tokens}}}}}
concurrency: [{streams}]
blocks: 1
prompts: 24
"""


@dataclass(frozen=True, slots=True)
class Fixed:
    """`start_s`: from the process's start to the first request of the load. `memory_mb`: the tree's peak (PSS)."""

    start_s: float
    memory_mb: float


def specprof_command(program: Path, folder: Path, url: str) -> list[str]:
    """`specprof run` of an attached server, with the report at its end."""
    config = folder / "bench.yaml"
    config.write_text(STUDY.format(url=url, root=ROOT, tokens=LOAD.tokens, streams=LOAD.streams))
    return [str(program), "run", str(config), "--results", str(folder)]


def fixed_costs(url: str, command: Sequence[str]) -> Fixed:
    """Run a client to its end and watch it. Raises RuntimeError with what it complained of."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        watch = _Watch(process.pid)
        watch.start()
        said, _ = process.communicate(timeout=240)
        watch.join()
    if process.returncode:
        raise RuntimeError(f"{command[0]}: {said[-800:]}")
    return Fixed(first_heard_s(url, besides=PROBE_CHUNKS) - began, watch.peak_mb)


class _Watch(threading.Thread):
    """Samples the memory of a process and its children, shared pages counted once, until it is gone."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.peak_mb = 0.0

    def run(self) -> None:
        """Until the process has ended."""
        process = psutil.Process(self._pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            try:
                tree = [process, *process.children(recursive=True)]
                self.peak_mb = max(self.peak_mb, sum(map(_pss, tree)) / 1e6)
            except psutil.Error:
                return
            time.sleep(SAMPLE_S)


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def base_install(home: Path) -> tuple[Path, float]:
    """specprof alone, freshly installed from this checkout: its program, and the environment's size, MB.

    pip itself, which every environment comes with, is not counted.
    """
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    ended = subprocess.run([*pip, str(ROOT)], check=False, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"cannot be installed: {ended.stderr[-400:]}")
    return home / "bin" / "specprof", size_mb(home)


def size_mb(home: Path) -> float:
    """What an environment takes on disk without pip."""
    files = (path for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_blocks * 512 for path in files if "/pip/" not in str(path)) / 1e6
