"""Strict models of the fields that KubeRay's files use.

They follow the types ``ray.io/v1`` of KubeRay 1.5 (``authOptions`` came with it) and those of
Kubernetes' core/v1 that a pod of ours names.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Env(Strict):
    name: str
    value: str


class Mount(Strict):
    name: str
    mountPath: str
    readOnly: bool = False


class Capabilities(Strict):
    drop: list[str]


class ContainerSecurity(Strict):
    allowPrivilegeEscalation: Literal[False]
    capabilities: Capabilities


Quantities = dict[Literal["cpu", "memory", "nvidia.com/gpu"], str]


class Resources(Strict):
    requests: Quantities
    limits: Quantities


class Container(Strict):
    name: str
    image: str = Field(pattern=r":\d")
    command: list[str] = []
    env: list[Env] = []
    resources: Resources | None = None
    securityContext: ContainerSecurity | None = None
    volumeMounts: list[Mount] = []


class Secret(Strict):
    secretName: str


class EmptyDir(Strict):
    medium: Literal["Memory"]
    sizeLimit: str | None = None


class Claim(Strict):
    claimName: str


class Volume(Strict):
    name: str
    secret: Secret | None = None
    emptyDir: EmptyDir | None = None
    persistentVolumeClaim: Claim | None = None


class PodSecurity(Strict):
    runAsNonRoot: Literal[True]
    runAsUser: int = Field(ge=1)
    runAsGroup: int = Field(ge=1)
    fsGroup: int = Field(ge=1)


class PodSpec(Strict):
    restartPolicy: Literal["Never"]
    securityContext: PodSecurity
    initContainers: list[Container]
    containers: list[Container]
    volumes: list[Volume]


class PodTemplate(Strict):
    spec: PodSpec


class AuthOptions(Strict):
    mode: Literal["token"]


class AutoscalerOptions(Strict):
    version: Literal["v2"]
    idleTimeoutSeconds: int = Field(ge=1)


class HeadGroup(Strict):
    rayStartParams: dict[str, str]
    template: PodTemplate


class WorkerGroup(HeadGroup):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int


class ClusterSpec(Strict):
    rayVersion: str
    enableInTreeAutoscaling: Literal[True]
    authOptions: AuthOptions
    autoscalerOptions: AutoscalerOptions
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class SubmitterConfig(Strict):
    backoffLimit: int


class JobSpec(Strict):
    entrypoint: str
    submissionMode: Literal["K8sJobMode", "HTTPMode"]
    backoffLimit: int
    submitterConfig: SubmitterConfig
    shutdownAfterJobFinishes: bool
    ttlSecondsAfterFinished: int
    rayClusterSpec: ClusterSpec


class Meta(Strict):
    name: str


class RayCluster(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Meta
    spec: ClusterSpec


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Meta
    spec: JobSpec
