"""Strict models of the fields that the launchers' files use, one cloud's ``node_config`` each.

Ray's own check takes any key of a ``node_config``. Fields are those of EC2's ``create_instances``
(boto3 1.44), Compute Engine's ``instances.insert`` (v1) and the parameters of Ray 2.60's
``azure-vm-template.json``.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Volume(Strict):
    VolumeSize: int = Field(ge=50)
    VolumeType: Literal["gp3"]
    Encrypted: Literal[True]


class Mapping(Strict):
    DeviceName: str
    Ebs: Volume


class MarketOptions(Strict):
    MarketType: Literal["spot"]


class MetadataOptions(Strict):
    HttpTokens: Literal["required"]


class AwsNode(Strict):
    InstanceType: str
    ImageId: str
    BlockDeviceMappings: list[Mapping]
    MetadataOptions: MetadataOptions
    InstanceMarketOptions: MarketOptions | None = None

    @property
    def spot(self) -> bool:
        return self.InstanceMarketOptions is not None


class InitialDisk(Strict):
    diskSizeGb: int = Field(ge=50)
    sourceImage: str = Field(pattern=r"^projects/[\w-]+/global/images/(family/)?[\w-]+$")


class Disk(Strict):
    boot: bool
    autoDelete: bool
    type: Literal["PERSISTENT"]
    initializeParams: InitialDisk


class Scheduling(Strict):
    preemptible: bool
    onHostMaintenance: Literal["MIGRATE", "TERMINATE"] | None = None


class Accelerator(Strict):
    acceleratorType: str
    acceleratorCount: int


class Item(Strict):
    key: str
    value: str


class Metadata(Strict):
    items: list[Item]


class GcpNode(Strict):
    machineType: str
    disks: list[Disk]
    scheduling: list[Scheduling] = []
    guestAccelerators: list[Accelerator] = []
    metadata: Metadata | None = None

    @property
    def spot(self) -> bool:
        return any(one.preemptible for one in self.scheduling)


class Billing(Strict):
    maxPrice: int


class ArmParameters(Strict):
    vmSize: str
    imagePublisher: str
    imageOffer: str
    imageSku: str
    imageVersion: str
    priority: Literal["Regular", "Spot"] = "Regular"
    billingProfile: Billing | None = None


class AzureNode(Strict):
    azure_arm_parameters: ArmParameters

    @property
    def spot(self) -> bool:
        return self.azure_arm_parameters.priority == "Spot"


NODES: dict[str, type[AwsNode] | type[GcpNode] | type[AzureNode]] = {
    "aws": AwsNode,
    "gcp": GcpNode,
    "azure": AzureNode,
}
