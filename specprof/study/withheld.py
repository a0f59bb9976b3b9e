"""What is never written down: a value whose name says that it is a secret.

A study file is kept with its results, and an engine's arguments stand on a command line that every user of the machine
can read. So a secret is exported in the shell, where the engine inherits it, and named nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_AT_THE_END = re.compile(r"(?:token|keys?|secret|pass(?:word|wd|phrase)|credentials?)$", re.IGNORECASE)
_ALONE = {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials"}
_OF_A_VARIABLE = _ALONE | {"key", "keys", "pass"}  # elsewhere a cache has keys, and a compiler passes
_TOKEN = {"token", "tokens"}
_OF_A_COUNT = {"max", "min", "num", "per", "total", "size", "limit", "threshold"}  # of the tokens a model writes
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def names_secret(name: object) -> bool:
    """Whether a variable, key or flag says that a secret stands behind it: `HF_TOKEN`, `HF_TOKEN_READ`, `--api-key`.

    Words that also have harmless meanings count anywhere in an environment variable, elsewhere at the end alone.
    """
    told = str(name)
    words = {word.lower() for word in _WORD.findall(told)}
    if told.upper() == told and (words & _OF_A_VARIABLE or (words & _TOKEN and not words & _OF_A_COUNT)):
        return True
    return _AT_THE_END.search(told) is not None or bool(words & _ALONE)


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
