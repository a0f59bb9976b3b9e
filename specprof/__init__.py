"""specprof: which workloads should get speculative decoding, how much, and can you defend the number you publish?

What is public to Python, and nothing else is:

    from specprof import Study, load, run

    folder = run(Study.from_file("configs/demo.yaml"))   # measures; resumes by itself
    load(folder).gains                                   # a pandas frame

`Study` says what to measure, `run` measures it, `load` reads a results folder into `Results`. Whatever goes wrong is a
`SpecprofError`: `InputError` where the caller can mend it, `EngineError` where the engine failed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprof.api.results import Results, load
    from specprof.api.running import run
    from specprof.errors import EngineError, InputError, SpecprofError
    from specprof.study.config import Study

__version__ = "0.1.0"

__all__ = ["EngineError", "InputError", "Results", "SpecprofError", "Study", "__version__", "load", "run"]

_HOMES = {  # loaded when first asked for: `import specprof` and `specprof --help` must not bring pyarrow
    "EngineError": "specprof.errors",
    "InputError": "specprof.errors",
    "Results": "specprof.api.results",
    "SpecprofError": "specprof.errors",
    "Study": "specprof.study.config",
    "load": "specprof.api.results",
    "run": "specprof.api.running",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specprof' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
