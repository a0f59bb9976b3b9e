"""What a Ray cluster has, seen from a process of its own: it is slow to import, loud, and may wait for a dead address.

Run as a module it prints the cluster as JSON, the one that RAY_ADDRESS names or else one that runs on this machine.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

ADDRESS = "RAY_ADDRESS"
PATIENCE_S = 60.0
START = (
    "On one node: ray start --head --port=6379; on every other: ray start --address=HEAD:6379; "
    f"then here: export {ADDRESS}=HEAD:6379"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """How many nodes are up, and what they have together, whoever uses it at the moment. `cpus_here`: of this node."""

    nodes: int
    cpus: int
    gpus: int
    cpus_here: int


class NoCluster(Exception):
    """There is none, or it does not answer; the text says which."""


def look() -> Cluster:
    """The cluster as it is now. Raises NoCluster."""
    named = os.environ.get(ADDRESS, "").strip()
    where = f"the cluster at {ADDRESS}={named} does not answer" if named else f"{ADDRESS} is not set and none runs here"
    try:
        told = subprocess.run(
            [sys.executable, "-P", "-m", "specprof.engine.ray_cluster"],
            capture_output=True,
            check=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        return Cluster(**json.loads(told.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, TypeError, IndexError):
        raise NoCluster(where) from None


def _print_cluster() -> None:
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level=logging.CRITICAL)  # `auto` heeds RAY_ADDRESS
    up = [node for node in ray.nodes() if node["Alive"]]
    has, here = ray.cluster_resources(), ray.get_runtime_context().get_node_id()
    cpus_here = sum(int(node["Resources"].get("CPU", 0)) for node in up if node["NodeID"] == here)
    found = Cluster(len(up), int(has.get("CPU", 0)), int(has.get("GPU", 0)), cpus_here)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    _print_cluster()
