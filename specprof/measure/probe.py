"""This machine's own ceilings, measured: how fast its memory is read and written, and how fast it multiplies matrices.

Every probe runs at several sizes and many times, and the best counts: a ceiling is what the machine can do, not what it
does on average. Needs torch; uses the GPU if torch sees one, else the CPU with the threads torch has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from specprof.errors import InputError
from specprof.measure.environment import machine

if TYPE_CHECKING:
    import torch

BUDGET_S = 15.0  # of measuring; torch's start and a last trial come on top
_BUSY = 0.2  # of the cores taken by others: the ceilings then come out too low, and the source says so
_MIB = 1 << 20

_Job = Callable[..., "Trial"]

# Large enough that no cache holds both buffers.
_COPY_BYTES = {"cpu": (256 * _MIB, 512 * _MIB), "cuda": (512 * _MIB, 1024 * _MIB, 2048 * _MIB)}
_MATMUL_SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}


@dataclass(frozen=True, slots=True)
class Trial:
    """One probe at one size: `kind` (copy, matrix-vector, matmul), what was moved or multiplied, and its best rate.

    `rate`: bytes/s, read and written ones counted, or FLOP/s.
    """

    kind: str
    dtype: str
    size: str
    runs: int
    rate: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine reached: bytes/s, FLOP/s, bytes of memory, and every trial behind them."""

    name: str
    device: str
    bandwidth: float
    flops: float
    memory: float
    trials: tuple[Trial, ...]
    source: str


def probe(device: str | None = None, budget_s: float = BUDGET_S) -> Ceilings:
    """Measure this machine for about `budget_s` seconds.

    `device`: `cpu` or `cuda`; the GPU if there is one, if not given. Raises InputError without torch or the device.
    """
    torch = _torch()
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--probe: torch sees no GPU here. Probe the CPU, or install a torch built for the GPU.")
    busy = psutil.cpu_percent(interval=0.5) / 100
    trials = list(_trials(torch, kind, budget_s))
    bandwidth = max((t for t in trials if t.kind != "matmul"), key=_rate)
    flops = max((t for t in trials if t.kind == "matmul"), key=_rate)
    name, memory = _description(torch, kind)
    source = f"{_source(bandwidth, flops)}; torch {torch.__version__} on {kind}"
    if kind == "cpu" and busy > _BUSY:
        source += f"; other work had {busy:.0%} of the cores, so the ceilings may be too low: probe an idle machine"
    return Ceilings(name, kind, bandwidth.rate, flops.rate, memory, tuple(trials), source)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise InputError(
            "--probe: needs torch. Install it (pip install '.[cpu]' or '.[cuda]') and try again."
        ) from None
    return torch


def _trials(torch: Any, device: str, budget_s: float) -> Iterator[Trial]:
    """Copies, matrix-vector products (what a decode step of one stream is) and products of square matrices.

    The smallest of each come first: on a machine so busy that the time is up, the larger ones are left out.
    """
    sizes = [size for size in _COPY_BYTES[device] if 4 * size < _free_bytes(torch, device)]
    dtypes = (torch.float32, torch.bfloat16) if device == "cpu" else (torch.bfloat16, torch.float16)
    memory: list[_Job] = [partial(job, num_bytes=n) for n in sizes or _COPY_BYTES[device][:1] for job in _MEMORY_JOBS]
    arithmetic: list[_Job] = [partial(_matmul, dtype=d, size=n) for n in _MATMUL_SIZES[device] for d in dtypes]
    smallest = [*memory[:2], *arithmetic[:2]]
    jobs = [*smallest, *memory[2:], *arithmetic[2:]]
    end = time.perf_counter() + budget_s
    for done, job in enumerate(jobs):
        left_s = end - time.perf_counter()
        if left_s > 0 or done < len(smallest):
            yield job(torch, device, budget_s=max(left_s, 0.0) / (len(jobs) - done))


def _copy(torch: Any, device: str, *, num_bytes: int, budget_s: float) -> Trial:
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    best_s, runs = _best(torch, device, lambda: target.copy_(source), budget_s)
    return Trial("copy", "float32", f"{num_bytes // _MIB} MiB", runs, 2 * num_bytes / best_s)


def _matrix_vector(torch: Any, device: str, *, num_bytes: int, budget_s: float) -> Trial:
    columns = 4096
    matrix = torch.ones(num_bytes // 4 // columns, columns, dtype=torch.float32, device=device)
    vector = torch.ones(columns, dtype=torch.float32, device=device)
    out = torch.empty(matrix.shape[0], dtype=torch.float32, device=device)
    best_s, runs = _best(torch, device, lambda: torch.mv(matrix, vector, out=out), budget_s)
    return Trial("matrix-vector", "float32", f"{num_bytes // _MIB} MiB", runs, num_bytes / best_s)


def _matmul(torch: Any, device: str, *, dtype: torch.dtype, size: int, budget_s: float) -> Trial:
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    best_s, runs = _best(torch, device, lambda: torch.matmul(a, b, out=out), budget_s)
    return Trial("matmul", str(dtype).removeprefix("torch."), f"{size}³", runs, 2 * size**3 / best_s)


_MEMORY_JOBS = (_copy, _matrix_vector)


def _best(torch: Any, device: str, work: Callable[[], object], budget_s: float) -> tuple[float, int]:
    """Shortest run in seconds, and how many there were: until the budget is spent, and one at least."""
    done: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    work()  # pages are touched and kernels chosen
    done()
    best_s, runs, end = float("inf"), 0, time.perf_counter() + budget_s
    while runs == 0 or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        done()
        best_s = min(best_s, time.perf_counter() - begin)
        runs += 1
    return best_s, runs


def _free_bytes(torch: Any, device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return int(psutil.virtual_memory().available)


def _description(torch: Any, device: str) -> tuple[str, float]:
    """What the machine calls itself, and its memory in bytes."""
    if device == "cuda":
        told = torch.cuda.get_device_properties(0)
        return str(told.name), float(told.total_memory)
    facts = machine()
    return f"{facts['cpu']}, {torch.get_num_threads()} threads", float(psutil.virtual_memory().total)


def _source(bandwidth: Trial, flops: Trial) -> str:
    return (
        f"measured here: {bandwidth.kind} of {bandwidth.size} (best of {bandwidth.runs}), {flops.dtype} matmul of "
        f"{flops.size} (best of {flops.runs})"
    )


def _rate(trial: Trial) -> float:
    return trial.rate
