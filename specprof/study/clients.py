"""Who sends the requests: this process alone, or several clients, each with its share of the streams or the schedule.

    load: {workers: 2}                   # two processes beside this one
    load: {workers: 4, backend: ray}     # four actors of a Ray cluster (RAY_ADDRESS), or of a local one

It stands at the top of a study, alone or beside an open loop (`load: {kind: rates, …, workers: 2}`), since every cell
of a study is sent by the same clients: two cells that differ in who sent them are not comparable.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from specprof.errors import InputError
from specprof.study.strict import Strict

MAX_WORKERS = 256
RAY_INSTALL = "pip install 'specprof[ray]'"


class Clients(Strict):
    """How many clients send, and what they run in. One `process` is the one that measures; one of `ray` is an actor."""

    workers: int = Field(default=1, gt=0, le=MAX_WORKERS)
    backend: Literal["process", "ray"] = "process"

    @model_serializer(mode="wrap")
    def _as_before_there_were_several(self, plain: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """A load that is sent by this process alone is the one it was, so that no hash of it changes."""
        said: dict[str, JsonValue] = plain(self)
        for name in Clients.model_fields:
            if getattr(self, name) == Clients.model_fields[name].default:
                said.pop(name, None)
        return said

    @property
    def alone(self) -> bool:
        """Whether the process that measures sends everything itself."""
        return self.workers == 1 and self.backend == "process"


def require_backend(clients: Clients) -> None:
    """Raise InputError, with the command to run, where `backend: ray` is asked for and Ray is not installed."""
    if clients.backend == "ray" and not ray_is_installed():
        raise InputError(
            f"load.backend: ray: Ray is not installed here. {RAY_INSTALL}, or write backend: process for several "
            "clients on this machine."
        )


def ray_is_installed() -> bool:
    """Whether there is a Ray to import; it is not imported for that."""
    return importlib.util.find_spec("ray") is not None
