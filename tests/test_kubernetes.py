"""The manifest and the Dockerfile fit each other and the study inside: nothing is built or applied here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.reading import parse_study
from tests.running import ROOT

MANIFEST = ROOT / "examples" / "kubernetes" / "job.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def objects() -> Mapping[str, Any]:
    """The manifest's objects by kind."""
    return {told["kind"]: told for told in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def pod(objects: Mapping[str, Any]) -> Mapping[str, Any]:
    return objects["Job"]["spec"]["template"]["spec"]


def study_in(objects: Mapping[str, Any]) -> Study:
    ((name, text),) = objects["ConfigMap"]["data"].items()
    return parse_study(text, name)


def test_the_study_attaches_with_the_token_that_the_secret_holds(
    objects: Mapping[str, Any], pod: Mapping[str, Any]
) -> None:
    engine = study_in(objects).engine
    assert isinstance(engine, AttachEngine)
    (container,) = pod["containers"]
    secrets = {item["name"]: item["valueFrom"]["secretKeyRef"] for item in container["env"]}
    assert set(secrets) == {engine.token_env}
    assert "value" not in container["env"][0]


def test_what_the_container_runs_is_mounted_there(objects: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts.values()) == set(volumes)
    command, study_file, option, results = container["args"]
    assert (command, option) == ("run", "--results")
    folder, _, name = study_file.rpartition("/")
    assert list(objects["ConfigMap"]["data"]) == [name]
    assert volumes[mounts[folder]]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    claim = volumes[mounts[results]]["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert "/tmp" in mounts, "the root file system is read-only"


def test_suites_of_the_study_are_in_the_image(objects: Mapping[str, Any]) -> None:
    copied = {part for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, flags=re.MULTILINE) for part in line.split()}
    assert copied >= {"pyproject.toml", "specprof", "prompts"}
    for part in copied:
        assert (ROOT / part).exists(), f"the Dockerfile copies {part}"
    for workload in study_in(objects).workloads:
        assert workload.suite is not None
        assert workload.suite.parts[0] in copied
        assert (ROOT / workload.suite).is_file()


def test_it_runs_as_nobody_in_particular(pod: Mapping[str, Any]) -> None:
    user = re.search(r"^USER (\d+)$", DOCKERFILE, flags=re.MULTILINE)
    assert user is not None and user[1] != "0"
    assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_lost_pod_goes_on_and_a_refused_study_is_not_tried_for_ever(objects: Mapping[str, Any]) -> None:
    spec = objects["Job"]["spec"]
    assert 0 < spec["backoffLimit"] <= 6
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
