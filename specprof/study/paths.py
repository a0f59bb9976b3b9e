"""Every file that a study names, in one place: whoever reads or writes study files changes them all alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.load import Trace

Place = Callable[[Path, str], Path]  # a file as named, and what it is: suite, trace, ca_file


def with_paths(study: Study, place: Place) -> Study:
    """The study with each file it names put where `place` says. What names no file stays as it was set."""
    changes: dict[str, Any] = {"workloads": tuple(_placed(work, "suite", place) for work in study.workloads)}
    for section in ("prefill", "interference"):
        if (found := getattr(study, section)) is not None:
            changes[section] = _placed(found, "suite", place)
    if isinstance(study.load, Trace):
        changes["load"] = _trace(study.load, place)
    if isinstance(study.engine, AttachEngine):
        changes["engine"] = _placed(study.engine, "ca_file", place)
    changes["protocols"] = {
        name: protocol.model_copy(update={"load": _trace(protocol.load, place)})
        if isinstance(protocol.load, Trace)
        else protocol
        for name, protocol in study.protocols.items()
    }
    return study.model_copy(update=changes)


def _placed(section: Any, field: str, place: Place) -> Any:
    named = getattr(section, field)
    return section if named is None else section.model_copy(update={field: place(named, field)})


def _trace(load: Trace, place: Place) -> Trace:
    return load.model_copy(update={"file": place(load.file, "trace")})
