"""What a study asks of Ray: for vLLM's own executor over several nodes, and for the clients that send the requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

from specprof.engine import command, names, ray_cluster
from specprof.engine.check import Check, fail, ok, warn
from specprof.engine.ray_cluster import ADDRESS, NoCluster
from specprof.errors import InputError
from specprof.study.attach import AttachEngine
from specprof.study.clients import RAY_INSTALL, Clients, ray_is_installed, require_backend
from specprof.study.engines import EngineSpec, VllmEngine

EXECUTOR = "distributed_executor_backend"


def over_nodes(spec: VllmEngine) -> bool:
    """Whether the study's engine runs on whatever nodes a Ray cluster has, not on this machine's GPUs alone."""
    return spec.args_by_name.get(EXECUTOR) == "ray"


def executor(wanted: int, shape: str) -> Iterator[Check]:
    """A cluster with the GPUs that the engine's ranks want, one each."""
    name = "gpus of the cluster"
    if not ray_is_installed():
        yield fail(name, f"{EXECUTOR}: ray, and Ray is not installed here", f"{RAY_INSTALL}, on every node.")
        return
    try:
        found = ray_cluster.look()
    except NoCluster as problem:
        yield fail(name, f"no Ray cluster: {problem}", ray_cluster.START)
        return
    has = (
        f"{found.gpus} on {found.nodes} node{'s' if found.nodes != 1 else ''}; wanted {wanted} ({shape or 'one rank'})"
    )
    if found.gpus < wanted:
        yield fail(name, has, f"Add nodes with GPUs, or lower {' or '.join(command.RANKS[:2])} in engine.args.")
    else:
        yield ok(name, has)
        yield warn(
            "nodes", "each must hold this vLLM, and the model under the same name", "Nobody can look there from here."
        )


def clients(asked: Clients, engine: EngineSpec) -> Iterator[Check]:
    """Whether the clients that a study asks for can be had where they reach its engine."""
    name = "clients"
    if asked.alone:
        return
    try:
        require_backend(asked)
    except InputError as problem:
        yield fail(name, "Ray is not installed", str(problem))
        return
    if asked.backend == "ray" and os.environ.get(ADDRESS, "").strip():
        yield _on_a_cluster(name, asked, engine)
        return
    cores, found = command.usable_cores(), f"{asked.workers} on this machine"
    if asked.workers >= cores:
        yield warn(name, f"{found}, which has {cores} cores", "Each needs a core of its own, and so does the engine.")
    else:
        yield ok(name, f"{found}, which has {cores} cores")


def _on_a_cluster(name: str, asked: Clients, engine: EngineSpec) -> Check:
    try:
        found = ray_cluster.look()
    except NoCluster as problem:
        return fail(name, str(problem), ray_cluster.START)
    if _listens_here_alone(engine):
        has = f"{asked.workers} on this node of a Ray cluster, which has {found.cpus_here} cores of its {found.cpus}"
        remedy = "Lower load.workers: each takes a core of this node, since no other reaches an engine on 127.0.0.1."
        return fail(name, has, remedy) if found.cpus_here < asked.workers else ok(name, has)
    has = f"{asked.workers} on a Ray cluster of {found.cpus} cores"
    if found.cpus < asked.workers:
        return fail(name, has, "Lower load.workers, or add nodes: each worker takes a core.")
    return ok(name, has)


def _listens_here_alone(engine: EngineSpec) -> bool:
    """Whether all clients must be on this machine (`measure.ray_crew`), as for every engine that specprof starts."""
    if not isinstance(engine, AttachEngine):
        return True
    return any(names.is_loopback(names.place_of(url)[0]) for url in engine.arms.values())
