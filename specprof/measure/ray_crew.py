"""Workers that are actors of a Ray cluster: the one that RAY_ADDRESS names, or else one on this machine, ours alone.

Every node needs this specprof and this Python. A bearer token goes to an actor as an argument of one call, so it is in
the memory of two processes and in no command line, log or runtime environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from specprof.engine.access import Access
from specprof.engine.names import is_loopback, place_of
from specprof.engine.ray_cluster import ADDRESS
from specprof.errors import ClientError
from specprof.measure.crew import Crew, WorkerLost
from specprof.measure.worker import Worker

OBJECT_STORE_BYTES = 256 << 20  # of a cluster that we start: what workers return passes through it
CALLS_AT_ONCE = 16  # a worker that drives is asked how far it is


@contextmanager
def ray_crew(num_workers: int, base_url: str, access: Access) -> Iterator[Crew]:
    """A crew of actors, on the nodes of a cluster, or all here if only this machine can reach the engine.

    Raises ClientError where there is no cluster to be had.
    """
    with _cluster(num_workers):
        workers = Crew(num_workers, lambda: ActorHand(access, is_here=is_loopback(place_of(base_url)[0])))
        try:
            yield workers
        finally:
            workers.stop()


class ActorHand:
    """A worker in an actor (`measure.crew.Hand`)."""

    def __init__(self, access: Access, *, is_here: bool) -> None:
        strategy: Any = "SPREAD"
        if is_here:
            strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": CALLS_AT_ONCE, "scheduling_strategy": strategy}
        self._actor = ray.remote(**options)(Worker).remote()
        if access.token_env is not None:
            self._actor.admit.remote(access.token_env, os.environ.get(access.token_env, ""))

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises WorkerLost if the actor is gone, ClientError if the method failed."""
        answer = getattr(self._actor, method).remote(*arguments)
        try:
            return await asyncio.wrap_future(answer.future())
        except RayTaskError as problem:
            raise ClientError(f"{type(problem.cause).__name__}: {problem.cause}") from None
        except RayActorError as problem:
            raise WorkerLost(f"its actor is gone ({_first_line(problem)})") from None
        except RayError as problem:
            raise WorkerLost(_first_line(problem)) from None

    def stop(self) -> None:
        """End the actor, whatever it does."""
        ray.kill(self._actor)


@contextmanager
def _cluster(num_workers: int) -> Iterator[None]:
    """Connected to the cluster that the environment names, or to one of our own: quiet, and without a dashboard."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get(ADDRESS, "").strip()
    of_our_own: dict[str, Any] = {
        "address": "local",
        "num_cpus": num_workers,
        "num_gpus": 0,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a study is told to anybody
    try:
        with _sigterm_kept():
            ray.init(**({"address": address} if address else of_our_own), **quiet)
    except (ConnectionError, RuntimeError, ValueError, RayError) as problem:
        where = f"the cluster at {ADDRESS}={address}" if address else "a local cluster"
        raise ClientError(f"load.backend: ray: {where} is not to be had: {_first_line(problem)}") from None
    try:
        yield
    finally:
        with _sigterm_kept():
            ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself as it connects, and would end a run by an exit of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, ours)


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
