"""What is never written down: a value whose name says that it is a secret.

A study file is kept with its results, and an engine's arguments stand on a command line that every user of the machine
can read. So a secret is exported in the shell, where the engine inherits it, and named nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(r"(?:token|key|secret|pass(?:word|wd|phrase)|credentials?)$", re.IGNORECASE)


def names_secret(name: object) -> bool:
    """Whether a variable, key or flag says that a secret stands behind it: `HF_TOKEN`, `--api-key`."""
    return _SECRET.search(str(name)) is not None


def secret_among(values: Any) -> str | None:
    """The name of the first secret that a mapping holds, however deep; None where it holds none."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if names_secret(name) and isinstance(value, str) and value:
                return str(name)
            if (found := secret_among(value)) is not None:
                return found
    elif isinstance(values, list | tuple):
        return next(filter(None, map(secret_among, values)), None)
    return None
