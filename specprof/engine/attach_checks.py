"""Are the servers there that a study attaches to, and do they agree: looked at, without asking any model anything."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from specprof.engine.access import Access
from specprof.engine.attach import require_alike, require_claim
from specprof.engine.check import Check, fail, ok, warn
from specprof.engine.names import is_loopback, place_of
from specprof.engine.served import Served, look
from specprof.errors import EngineError, InputError
from specprof.study.attach import AttachEngine
from specprof.study.config import Study


def examine(study: Study, spec: AttachEngine) -> Iterator[Check]:
    """One check per arm, and one of what they tell beside each other."""
    access = Access(spec.token_env, spec.ca_file)
    seen: list[tuple[str, Served]] = []
    for arm, base_url in spec.arms.items():
        label = f"arm {arm}"
        try:
            served = look(base_url, access, spec.model)
            require_claim(arm, study.arms[arm].speculative_config, served, base_url)
        except EngineError as problem:
            yield fail(label, f"{problem.what.split('. ')[0].rstrip('.')} ({problem.cause})", _start_it(base_url))
            continue
        except InputError as problem:
            yield fail(label, *_parted(str(problem)))
            continue
        seen.append((arm, served))
        yield ok(label, f"{served.name} {served.version} at {base_url} serves {served.model}{_drafts(served)}")
        yield from _counters(label, served)
        yield from _in_the_open(label, base_url, spec)
    yield from _alike(seen)


def _alike(seen: list[tuple[str, Served]]) -> Iterator[Check]:
    if len(seen) < 2:
        return
    try:
        for other in seen[1:]:
            require_alike(seen[0], other)
    except InputError as problem:
        yield fail("arms", *_parted(str(problem)))
        return
    shared = sorted(set.intersection(*(set(served.settings) for _, served in seen)))
    yield ok("arms", f"agree in model, engine and version{''.join(f', {name}' for name in shared)}")


def _counters(label: str, served: Served) -> Iterator[Check]:
    if served.counters is None:
        yield warn(
            f"{label}: /metrics",
            "not offered: foreign traffic and waiting requests cannot be seen",
            "Let the server offer its Prometheus page at /metrics, or make sure that it serves nobody else.",
        )
    elif served.counters.num_requests_running:
        yield warn(
            f"{label}: traffic",
            f"{served.counters.num_requests_running:.0f} requests are running there now",
            "Measure on a server that serves nobody else.",
        )


def _in_the_open(label: str, base_url: str, spec: AttachEngine) -> Iterator[Check]:
    if spec.token_env and urlsplit(base_url).scheme == "http" and not is_loopback(place_of(base_url)[0]):
        yield warn(f"{label}: token", "goes over the network unencrypted", "Use an https:// address.")


def _drafts(served: Served) -> str:
    if served.drafts is None:
        return "; whether it speculates is not told"
    return ", with speculation" if served.drafts else ", without speculation"


def _start_it(base_url: str) -> str:
    return f"Start that server, or correct its address under engine.arms; 'curl {base_url}/health' shows the same."


def _parted(problem: str) -> tuple[str, str]:
    """What is wrong, and what to do about it: an error's first sentence and the rest."""
    found, _, remedy = problem.partition(". ")
    return found, remedy or found
