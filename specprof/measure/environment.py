"""The machine and client a study ran on: what a reader needs to judge whether two studies may be compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

import specprof
from specprof.engine.nvml import cards
from specprof.store import now
from specprof.version import git_commit

CEILING = "client_ceiling_chunks_per_s"
CEILING_PROBLEM = "client_ceiling_problem"


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
    """What the client can do on this machine, whatever the server (gate 11): a second and a half of measuring.

    Where that fails the ceiling is None and `CEILING_PROBLEM` says why; no study is lost over it.
    """
    from specprof.measure.ceiling import client_floor

    try:
        floor = client_floor()
    except OSError as problem:
        why = problem.strerror or type(problem).__name__  # without the path that its text may hold
    except RuntimeError as problem:
        why = str(problem)
    else:
        return {
            CEILING: round(floor.chunks_per_s),
            "client_cpu_us_per_chunk": round(floor.cpu_s_per_chunk * 1e6, 1),
            "client_itl_p99_error_ms": round(floor.itl_p99_error_s * 1e3, 3),
        }
    return {CEILING: None, CEILING_PROBLEM: why}


def gpus() -> list[dict[str, Any]]:
    """Name and memory of each NVIDIA GPU; empty where there is none or no driver."""
    found = cards()

    def card(handle: Any) -> dict[str, Any]:
        memory = found.told(found.nvml.nvmlDeviceGetMemoryInfo, handle)
        name = found.told(found.nvml.nvmlDeviceGetName, handle)
        return {"name": name, "memory_gib": memory and round(memory.total / 2**30, 1)}

    return [card(handle) for handle in found.handles.values()]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
