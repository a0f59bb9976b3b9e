"""What measuring a server of somebody else's has to mind: what it refuses and does not count, and if it is the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from specprof.engine import names
from specprof.engine.protocol import Engine
from specprof.errors import EngineError, InputError
from specprof.measure.wire import RawStream
from specprof.records import EngineFacts, Launch
from specprof.study.attach import AttachEngine
from specprof.study.config import Study

KNOCK_S = 2.0


def left_out(engine: Engine) -> Collection[str]:
    """Fields that requests to it go without (`engine.dialect`); none of an engine that specprof starts."""
    return frozenset(engine.facts().extra.get("fields_left_out", ()))


def has_counters(engine: Engine) -> bool:
    """Whether it has `/metrics`, as every engine has that specprof starts."""
    return bool(engine.facts().extra.get("metrics", True))


def on_its_server(study: Study, launch: Launch) -> Launch:
    """The launch that scores sampled texts, on the arm without speculation: an attached server is always an arm's."""
    if not isinstance(study.engine, AttachEngine):
        return launch
    off = next(name for name, arm in study.arms.items() if not arm.speculative_config)  # `require_sound_attach`
    return replace(launch, arm=off)


def refuses_connections(engine: Engine) -> bool:
    """Whether a server of somebody else's, of whose process nothing is known, takes no connections just now.

    Two refusals in a row are its death (`engine.attach`). One that is too busy to answer refuses nothing.
    """
    if engine.facts().kind != "attach":
        return False
    return names.refusal(*names.place_of(engine.base_url), KNOCK_S) is not None


_OF_ONE_LAUNCH = frozenset({"arm", "not_reported", "fields_left_out", "metrics", "prefix_cache_reset", "hardware"})


def require_same_server(now_running: EngineFacts, earlier: Mapping[int, EngineFacts]) -> None:
    """Servers may be set up anew between two runs of a study. Raises InputError where they tell something else now."""
    if now_running.kind != "attach":
        return
    told = _told(now_running)
    for number, facts in earlier.items():
        before = _told(facts)
        for field in told.keys() & before.keys():
            if told[field] != before[field]:
                raise InputError(
                    f"engine.arms: the server tells {field} {told[field]}, and launch {number} of this study measured "
                    f"one with {before[field]}. Set it up as it was, or give the study another name."
                )


def _told(facts: EngineFacts) -> Mapping[str, Any]:
    settings = {name: value for name, value in facts.extra.items() if name not in _OF_ONE_LAUNCH}
    return settings | {"model": facts.model, "engine": facts.name, "version": facts.version}


def require_let_in_still(engine: Engine, streams: Iterable[RawStream]) -> None:
    """Raise EngineError where a token has run out, before the rest of a study fails on it, cell by cell."""
    refused = next((raw.status for raw in streams if raw.status in (401, 403)), None)
    if refused is not None:
        what = f"The server at {engine.base_url} let us in, and does not any more. Renew the token, and run again."
        raise EngineError(what, cause=f"HTTP {refused}")
