"""KubeRay's files against strict models of the fields that they use; no cluster was asked."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.cluster.kubernetes import ClusterSpec, HeadGroup, RayCluster, RayJob

FOLDER = Path(__file__).parents[2] / "cluster"


def loaded(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return values


@pytest.fixture(params=["raycluster.yaml", "rayjob.yaml"])
def spec(request: pytest.FixtureRequest) -> ClusterSpec:
    values = loaded(request.param)
    if values["kind"] == "RayJob":
        return RayJob.model_validate(values).spec.rayClusterSpec
    return RayCluster.model_validate(values).spec


def groups(spec: ClusterSpec) -> list[HeadGroup]:
    return [spec.headGroupSpec, *spec.workerGroupSpecs]


def test_the_head_takes_no_worker_and_workers_come_from_none(spec: ClusterSpec) -> None:
    assert spec.rayVersion == version("ray")
    head = spec.headGroupSpec
    assert head.rayStartParams["num-cpus"] == "0"
    assert "automatic_object_spilling_enabled" in head.rayStartParams["system-config"]
    environment = {one.name: one.value for one in head.template.spec.containers[0].env}
    assert environment["RAY_enable_autoscaler_v2"] == "1"
    assert [one.groupName for one in spec.workerGroupSpecs] == ["cpu", "gpu"]
    assert all(one.replicas == one.minReplicas == 0 for one in spec.workerGroupSpecs)


def test_the_password_is_a_file_and_in_no_variable(spec: ClusterSpec) -> None:
    for group in groups(spec):
        pod = group.template.spec
        (container,) = pod.containers
        environment = {one.name: one.value for one in container.env}
        assert environment["PGPASSFILE"] == "/own/pgpass"
        assert environment["PRIVRL_LEDGER"].count(":") == 1  # a scheme, and no password
        copied = pod.initContainers[0].command
        assert copied[1:] == ["-m", "0600", "/mounted/pgpass", "/mounted/row_key", "/own"]
        assert environment["PRIVRL_LEDGER_KEY"] == "/own/row_key"
        volumes = {one.name: one for one in pod.volumes}
        assert volumes["mounted"].secret is not None
        assert "mounted" not in {one.name for one in container.volumeMounts}


def test_every_pod_has_shared_memory(spec: ClusterSpec) -> None:
    for group in groups(spec):
        pod = group.template.spec
        places = {one.mountPath: one.name for one in pod.containers[0].volumeMounts}
        volume = {one.name: one for one in pod.volumes}[places["/dev/shm"]]
        assert volume.emptyDir is not None
        assert volume.emptyDir.sizeLimit == "2Gi"
        assert {one.name for one in pod.containers[0].volumeMounts} <= {
            one.name for one in pod.volumes
        }


def test_nothing_retries_a_job() -> None:
    job = RayJob.model_validate(loaded("rayjob.yaml")).spec
    assert (job.backoffLimit, job.submitterConfig.backoffLimit) == (0, 0)
    assert job.rayClusterSpec == RayCluster.model_validate(loaded("raycluster.yaml")).spec


@pytest.mark.parametrize("key", ["enableInTreeAutoscalin", "autoscalerOption"])
def test_a_typing_error_is_found(key: str) -> None:
    values = loaded("raycluster.yaml")
    values["spec"][key] = True
    with pytest.raises(ValidationError, match=key):
        RayCluster.model_validate(values)
