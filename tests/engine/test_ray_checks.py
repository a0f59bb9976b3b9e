"""What the doctor says of Ray: for the engine's executor and for the clients, without a cluster and with one."""

from __future__ import annotations

import pytest

from specprof.engine import command, ray_checks, ray_cluster, study_checks
from specprof.engine.check import Check, Outcome
from specprof.engine.command import InstalledEngine
from specprof.engine.doctor import TESTED_VERSION
from specprof.engine.ray_cluster import Cluster, NoCluster
from specprof.study import clients as study_clients
from specprof.study.attach import AttachEngine
from specprof.study.clients import Clients
from specprof.study.engines import EngineSpec, SimEngine, VllmEngine
from specprof.study.reading import load_study
from tests.running import ROOT

HERE = VllmEngine(kind="vllm", model="org/model")
ELSEWHERE = AttachEngine(kind="attach", arms={"off": "http://10.0.0.5:8000"})
CUDA = InstalledEngine("vllm", TESTED_VERSION, "cuda")


@pytest.fixture(autouse=True)
def _ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is: nothing here imports it."""
    for module in (ray_checks, study_clients):
        monkeypatch.setattr(module, "ray_is_installed", lambda: True)
    monkeypatch.delenv(ray_cluster.ADDRESS, raising=False)


def clustered(monkeypatch: pytest.MonkeyPatch, **found: int) -> None:
    monkeypatch.setattr(ray_cluster, "look", lambda: Cluster(**{"cpus_here": found["cpus"] // found["nodes"], **found}))


def of_the_preset() -> list[Check]:
    study = load_study(ROOT / "configs" / "multi-node-ray.yaml")
    assert isinstance(study.engine, VllmEngine)
    return list(study_checks.examine(study, study.engine, CUDA))


def only(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def test_gpus_are_counted_on_the_cluster_and_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "gpu_names", lambda: (["H200"] * 8, ""))
    clustered(monkeypatch, nodes=2, cpus=384, gpus=16)
    checks = of_the_preset()
    gpus = only(checks, "gpus of the cluster")
    assert (gpus.outcome, gpus.found) == (Outcome.OK, "16 on 2 nodes; wanted 16 (pipeline 2 × tensor 8)")
    assert not [check for check in checks if check.outcome is Outcome.FAIL]
    assert not [check for check in checks if check.name == "gpus"]


def test_a_cluster_with_too_few_gpus_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    clustered(monkeypatch, nodes=1, cpus=192, gpus=8)
    gpus = only(of_the_preset(), "gpus of the cluster")
    assert (gpus.outcome, gpus.found) == (Outcome.FAIL, "8 on 1 node; wanted 16 (pipeline 2 × tensor 8)")


def test_no_cluster_is_told_with_the_commands_that_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Cluster:
        raise NoCluster("RAY_ADDRESS is not set and none runs here")

    monkeypatch.setattr(ray_cluster, "look", none)
    gpus = only(of_the_preset(), "gpus of the cluster")
    assert gpus.outcome is Outcome.FAIL
    assert "ray start --head" in gpus.remedy


def test_without_ray_neither_the_executor_nor_the_clients_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ray_checks, study_clients):
        monkeypatch.setattr(module, "ray_is_installed", lambda: False)
    gpus = only(of_the_preset(), "gpus of the cluster")
    assert gpus.outcome is Outcome.FAIL
    assert "pip install 'specprof[ray]'" in gpus.remedy
    (clients,) = ray_checks.clients(Clients(workers=2, backend="ray"), HERE)
    assert clients.outcome is Outcome.FAIL
    assert "pip install 'specprof[ray]'" in clients.remedy


def test_clients_are_held_against_the_cores_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "usable_cores", lambda: 4)
    (enough,) = ray_checks.clients(Clients(workers=3), HERE)
    (too_many,) = ray_checks.clients(Clients(workers=4), HERE)
    assert (enough.outcome, too_many.outcome) == (Outcome.OK, Outcome.WARN)
    assert not list(ray_checks.clients(Clients(), HERE))


def test_clients_on_a_cluster_are_held_against_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_cluster.ADDRESS, "10.0.0.1:6379")
    clustered(monkeypatch, nodes=2, cpus=4, gpus=0)
    (enough,) = ray_checks.clients(Clients(workers=4, backend="ray"), ELSEWHERE)
    (too_many,) = ray_checks.clients(Clients(workers=5, backend="ray"), ELSEWHERE)
    assert (enough.outcome, too_many.outcome) == (Outcome.OK, Outcome.FAIL)


@pytest.mark.parametrize(
    "engine",
    [
        HERE,
        SimEngine(kind="sim", preset="small"),
        AttachEngine(kind="attach", arms={"off": "http://10.0.0.5:8000", "on": "http://localhost:8001"}),
    ],
)
def test_clients_of_an_engine_that_only_this_machine_reaches_are_held_against_its_own_cores(
    monkeypatch: pytest.MonkeyPatch, engine: EngineSpec
) -> None:
    """`measure.ray_crew` keeps them all on this node: what other nodes have is of no use."""
    monkeypatch.setenv(ray_cluster.ADDRESS, "10.0.0.1:6379")
    clustered(monkeypatch, nodes=8, cpus=64, gpus=0, cpus_here=2)
    (enough,) = ray_checks.clients(Clients(workers=2, backend="ray"), engine)
    (too_many,) = ray_checks.clients(Clients(workers=3, backend="ray"), engine)
    assert (enough.outcome, too_many.outcome) == (Outcome.OK, Outcome.FAIL)
    assert too_many.found == "3 on this node of a Ray cluster, which has 2 cores of its 64"
    assert "add nodes" not in too_many.remedy


def test_a_cluster_that_does_not_answer_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, where Ray is there or not: nobody listens on that port."""
    monkeypatch.setenv(ray_cluster.ADDRESS, "127.0.0.1:9")
    monkeypatch.setattr(ray_cluster, "PATIENCE_S", 2.0)
    with pytest.raises(NoCluster, match=r"the cluster at RAY_ADDRESS=127\.0\.0\.1:9 does not answer"):
        ray_cluster.look()
