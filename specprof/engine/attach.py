"""A server that somebody else started, measured where it runs: looked at, questioned once, and left as it was.

Nothing is started, so a launch is a switch to another address, and nothing is known but what servers tell. What they
tell must agree: the arms serve one model with the same settings, and an arm drafts if and only if the study says so.
What they leave out stands in `EngineFacts.extra`, as `not_reported`, and on the report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from specprof.engine import dialect, endpoint, names
from specprof.engine.access import Access
from specprof.engine.dialect import Dialect
from specprof.engine.served import Served, look, require_let_in
from specprof.errors import EngineDied, EngineError, InputError
from specprof.records import EngineFacts, Launch
from specprof.study.attach import AttachEngine

PROBE_S = 120.0  # a large model that has been idle may take its time over a first request
WATCH_S = 0.5
_CONNECT_S = 2.0
_REFUSALS = 2  # in a row: one may be a full queue of connections
_SPECULATES = (
    "arms.{arm}: has no speculative_config, but the server at {base_url} speculates. Give the address of one that does "
    "not, or write down what it was started with, e.g. {{speculative_config: {{method: ngram, num_speculative_tokens: "
    "4}}}}."
)
_SIZES = ("max_num_seqs", "pipeline_parallel_size", "tensor_parallel_size", "data_parallel_size")  # whole, or unknown
_SWITCHED_BY_USER = frozenset({"enable_prefix_caching"})  # `cache: replay` asks for it; the server's owner sets it


class AttachedServer:
    """A running server of somebody else's (an `Engine`)."""

    def __init__(self, base_url: str, access: Access, facts: EngineFacts, watch: _Watch) -> None:
        self.base_url = base_url
        self.access = access
        self._facts = facts
        self._watch = watch

    @property
    def served_model(self) -> str:
        """The name to send as `model`."""
        return self._facts.model

    def facts(self) -> EngineFacts:
        """What the server told before anything was measured."""
        return self._facts

    def death(self) -> EngineDied | None:
        """None while its address takes connections; the same answer every time."""
        return self._watch.death


@contextmanager
def start(
    spec: AttachEngine, launch: Launch, *, folder: Path, on_progress: Callable[[str], None]
) -> Iterator[AttachedServer]:
    """Look at the server of the launch's arm and yield it, ready for requests; it runs on when the block ends.

    Raises EngineStartError if it is not up, InputError where the study and what the servers tell do not agree.
    """
    _require_no_args(launch.engine_args)
    folder.mkdir(parents=True, exist_ok=True)
    access, base_url = Access(spec.token_env, spec.ca_file), spec.arms[launch.arm]
    on_progress(f"looking at {base_url}")
    began = time.monotonic()
    served = look(base_url, access, spec.model)
    for arm, other in _others(spec, launch.arm, access):
        require_alike((launch.arm, served), (arm, other))
    require_claim(launch.arm, launch.speculative_config, served, base_url)
    resets = endpoint.reset_prefix_cache(base_url, access=access) is not None
    learned = _learn(base_url, access, served, launch)
    _require_drafts_counted(launch, base_url, access, served)
    facts = _facts(served, learned, launch, resets, time.monotonic() - began)
    with _watching(base_url) as watch:
        yield AttachedServer(base_url, access, facts, watch)


def _require_no_args(engine_args: Mapping[str, Any]) -> None:
    for name in engine_args:
        if name not in _SWITCHED_BY_USER:
            raise InputError(f"{name}: is set when an engine starts, and attached servers run already.")


# -- do the arms agree -----------------------------------------------------------------------------------------------


def _others(spec: AttachEngine, arm: str, access: Access) -> Iterator[tuple[str, Served]]:
    """The other arms' servers that are up now. One that is not is looked at when its own turn comes."""
    for other, base_url in spec.arms.items():
        if other == arm:
            continue
        try:
            yield other, look(base_url, access, spec.model)
        except EngineError:
            continue


def require_alike(one: tuple[str, Served], other: tuple[str, Served]) -> None:
    """Raise InputError, naming the field and both values, where two arms differ in more than speculation."""
    (arm, mine), (other_arm, theirs) = one, other
    told = {"model": (mine.model, theirs.model), "engine": (mine.name, theirs.name)}
    told |= {"version": (mine.version, theirs.version)}
    told |= {name: (mine.settings[name], theirs.settings[name]) for name in mine.settings if name in theirs.settings}
    for field, (here, there) in told.items():
        if here != there:
            raise InputError(
                f"engine.arms: the servers of {arm!r} and {other_arm!r} differ in {field}: {here} and {there}. Arms "
                "may differ in speculation alone; start both alike, or what is compared is something else."
            )


def require_claim(arm: str, claimed: Mapping[str, Any] | None, served: Served, base_url: str) -> None:
    """Raise InputError where a server tells that it drafts, or how, and the study says something else."""
    if claimed is None and served.drafts:
        raise InputError(_SPECULATES.format(arm=arm, base_url=base_url))
    if claimed is not None and served.drafts is False:
        raise InputError(
            f"arms.{arm}: has a speculative_config, but the server at {base_url} tells that it does not "
            "speculate. Start it with those flags, or leave them out."
        )
    for field in ("method", "num_speculative_tokens"):
        said, told = (claimed or {}).get(field), served.speculation.get(field)
        if said is not None and told is not None and not _agree(said, told):
            raise InputError(
                f"arms.{arm}.speculative_config.{field}: the study says {said}, the server at {base_url} says "
                f"{told}. Correct one of them."
            )


def _agree(said: Any, told: Any) -> bool:
    """vLLM folds the names of one model's own prediction layers (`deepseek_mtp`) into `mtp`."""
    return bool(said == told) or all(str(value).endswith("mtp") for value in (said, told))


def _require_drafts_counted(launch: Launch, base_url: str, access: Access, before: Served) -> None:
    """vLLM counts drafts from its first request on; a server that has answered one and counts none drafts nothing."""
    if launch.speculative_config is None or before.name != "vllm" or before.counters is None:
        return
    if endpoint.scrape(base_url, access=access).num_drafts is None:
        raise InputError(
            f"arms.{launch.arm}: has a speculative_config, but the server at {base_url} counts no drafts in its "
            "/metrics. Start it with those flags, or leave them out."
        )


# -- what it takes and tells -----------------------------------------------------------------------------------------


def _learn(base_url: str, access: Access, served: Served, launch: Launch) -> Dialect:
    cells = launch.cells
    path = "/v1/chat/completions" if cells[0].chat else "/v1/completions"

    def ask(body: Mapping[str, Any]) -> tuple[int, bytes]:
        told = endpoint.request("POST", base_url, path, timeout_s=PROBE_S, access=access, body=orjson.dumps(dict(body)))
        require_let_in(base_url, told[0], access)
        return told

    learned = dialect.learn(base_url, served.model, cells, ask)
    if learned.acceptance and launch.speculative_config is None:
        raise InputError(_SPECULATES.format(arm=launch.arm, base_url=base_url))
    dialect.require_length(learned, cells, base_url)
    if any(cell.guided for cell in cells) and served.name not in ("vllm", "specprof simulated engine"):
        raise InputError(
            f"{base_url}: guided protocols ask for their schema by structured_outputs, which is vLLM's field; this is "
            f"{served.name}. Leave guided: out for this server."
        )
    return learned


def _facts(served: Served, learned: Dialect, launch: Launch, resets: bool, took_s: float) -> EngineFacts:
    sizes = {name: served.settings.get(name) for name in _SIZES}
    told = {name: size for name, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool)}
    return EngineFacts(
        kind="attach",
        name=served.name,
        version=served.version,
        model=served.model,
        model_hash=f"served:{served.model}",  # nobody can look at its files
        device="",
        pipeline_parallel_size=told.get("pipeline_parallel_size") or 1,
        max_num_seqs=told.get("max_num_seqs"),
        start_s=round(took_s, 1),
        extra={
            **{name: value for name, value in served.settings.items() if name not in sizes or name in told},
            "arm": launch.arm,
            "not_reported": list(_not_reported(served, learned, launch)),
            "fields_left_out": list(learned.left_out),
            "metrics": served.counters is not None,
            "prefix_cache_reset": resets,
            **({"time_scale": served.time_scale} if served.time_scale != 1.0 else {}),
        },
    )


def _not_reported(served: Served, learned: Dialect, launch: Launch) -> Sequence[str]:
    missing = list(learned.not_reported())
    if served.counters is None:
        missing.append("counters")
    if launch.speculative_config and not learned.acceptance:
        counted = served.counters is not None and served.counters.num_drafts is not None
        missing.append("acceptance of each request" if counted else "acceptance")
    return missing


# -- is it still there -----------------------------------------------------------------------------------------------


class _Watch:
    """Knocks at an address twice a second, in a thread of its own so that no measured request waits for it."""

    def __init__(self, base_url: str) -> None:
        self.death: EngineDied | None = None
        self._base_url = base_url
        self._place = names.place_of(base_url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of an attached server", daemon=True)

    def start(self) -> None:
        """Begin to knock."""
        self._thread.start()

    def stop(self) -> None:
        """Return once nobody knocks any more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        refused, why = 0, ""
        while not self._stop.wait(WATCH_S) and refused < _REFUSALS:
            problem = names.refusal(*self._place, _CONNECT_S)
            if problem is None:
                refused = 0  # a busy one, or a slow way there: requests have time limits of their own
            else:
                refused, why = refused + 1, problem.strerror or type(problem).__name__
        if refused >= _REFUSALS:
            self.death = EngineDied(
                f"The server at {self._base_url} went away while it was being measured.", cause=why.lower()
            )


@contextmanager
def _watching(base_url: str) -> Iterator[_Watch]:
    watch = _Watch(base_url)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
