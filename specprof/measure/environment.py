"""The machine and client a study ran on: what a reader needs to judge whether two studies may be compared."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

import specprof
from specprof.store import now

_HERE = Path(__file__).resolve().parent


def machine() -> dict[str, Any]:
    """Hardware, operating system and specprof's own version. Holds no host name, user name or path."""
    return {
        "specprof": specprof.__version__,
        "git_commit": git_commit(),
        "recorded_at": now(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus(),
    }


def client() -> dict[str, Any]:
    """What the client can do on this machine, whatever the server (gate 11): about a second of measuring.

    Where that fails the ceiling is None and `client_ceiling_problem` says why; no study is lost over it.
    """
    from specprof.measure.ceiling import client_ceiling

    try:
        return {"client_ceiling_chunks_per_s": round(client_ceiling())}
    except OSError as problem:
        why = problem.strerror or type(problem).__name__  # without the path that its text may hold
    except RuntimeError as problem:
        why = str(problem)
    return {"client_ceiling_chunks_per_s": None, "client_ceiling_problem": why}


def git_commit() -> str | None:
    """Commit of the checkout specprof runs from, with `+` if it was changed; None outside one."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top) / "specprof" / "measure" != _HERE:
        return None  # installed as a package, perhaps inside a checkout of something else
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", str(_HERE.parent))
    return commit and commit + ("+" if changed else "")


def _git(*arguments: str) -> str | None:
    """What git answers, None where it has no answer."""
    command = ["git", "-C", str(_HERE), *arguments]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def gpus() -> list[dict[str, Any]]:
    """Name and memory of each NVIDIA GPU; empty where there is none or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - the binding raises its own kinds, and none of them matters here
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        found.append({"name": pynvml.nvmlDeviceGetName(handle), "memory_gib": round(memory.total / 2**30, 1)})
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
