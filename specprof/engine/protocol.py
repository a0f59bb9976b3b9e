"""What the measuring loop needs of an engine, and nothing more.

`start(study, launch, ...)` of each engine kind is a context manager that yields an `Engine` ready for requests and
leaves nothing behind, however the block ends.
"""

from __future__ import annotations

from typing import Protocol

from specprof.errors import EngineDied
from specprof.records import EngineFacts


class Engine(Protocol):
    """A running, ready server that speaks the OpenAI API as vLLM does."""

    @property
    def base_url(self) -> str:
        """Where it listens, e.g. `http://127.0.0.1:8123` (no path, no trailing slash)."""

    @property
    def served_model(self) -> str:
        """The name to send as `model`."""

    def facts(self) -> EngineFacts:
        """What runs here, read once after start-up."""

    def death(self) -> EngineDied | None:
        """None while it lives; otherwise why it died. Cheap: asked several times a second while a cell runs."""
