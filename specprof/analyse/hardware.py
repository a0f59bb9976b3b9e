"""Published ceilings of machines people serve on: memory bandwidth, 16-bit dense arithmetic, memory, and their source.

Figures are those of the maker's data sheets, without sparsity. A card without a data sheet (an unlocked mining card,
a part of a GPU) has no row: `specprof roofline --probe` measures it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specprof.analyse.roofline import Hardware
from specprof.errors import InputError

_TABLE: tuple[tuple[str, Hardware], ...] = (
    (r"A100.SXM4?.80GB", Hardware("A100 80GB SXM", 2.039e12, 312e12, 80e9, "NVIDIA A100 data sheet")),
    (r"H100 80GB HBM3|H100 SXM", Hardware("H100 SXM", 3.35e12, 989e12, 80e9, "NVIDIA H100 data sheet")),
    (r"H200(?! NVL)", Hardware("H200 SXM", 4.8e12, 989e12, 141e9, "NVIDIA H200 data sheet")),
    (r"L40S", Hardware("L40S", 864e9, 362.05e12, 48e9, "NVIDIA L40S data sheet")),
    (r"RTX 4090(?! D| Laptop)", Hardware("RTX 4090", 1.008e12, 165.2e12, 24e9, "NVIDIA Ada architecture, appendix A")),
    (r"MI300X", Hardware("MI300X", 5.3e12, 1307.4e12, 192e9, "AMD Instinct MI300X data sheet")),
)


def hardware(gpu_name: str) -> Hardware | None:
    """The row of a GPU by the name its driver gives (`NVIDIA H100 80GB HBM3`); None if no row is certain to be its."""
    return next((row for pattern, row in _TABLE if re.search(pattern, gpu_name)), None)


def named(name: str) -> Hardware:
    """The row a person means, by its name or a part that only it has (`h100`). InputError, with all names, if none."""
    wanted = _plain(name)
    found = [row for _, row in _TABLE if wanted and wanted in _plain(row.name)]
    exact = [row for row in found if _plain(row.name) == wanted]
    if len(exact or found) != 1:
        what = "fits several rows" if found else "is not in the hardware table"
        raise InputError(f"--hardware {name}: {what}. Known: {', '.join(names())}. --probe measures this machine.")
    return (exact or found)[0]


def served_on(environment: Mapping[str, Any], launch: int) -> Hardware | None:
    """The machine of one launch of a study, its parallel GPUs together; None where it is unknown or a CPU.

    Pipeline stages read one after the other, so only tensor and data parallelism add their bandwidths.
    """
    facts = environment.get("launches", {}).get(str(launch), {})
    if facts.get("kind") == "attach":
        return None  # the environment is the client's; nobody told what the server runs on
    gpus = environment.get("gpus") or ()
    row = hardware(str(gpus[0].get("name"))) if gpus and facts.get("device") != "cpu" else None
    extra = facts.get("extra", {})
    parallel = (extra.get("tensor_parallel_size") or 1) * (extra.get("data_parallel_size") or 1)
    return row.times(parallel) if row is not None else None


def names() -> tuple[str, ...]:
    """The machines listed."""
    return tuple(row.name for _, row in _TABLE)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()
