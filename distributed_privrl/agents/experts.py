"""A dataset's experts: what is public of them, and the files that hold them beside its data.

Their networks are `expert_policies`; what is here imports no torch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.bombs import check_holes
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import hash_unit

if TYPE_CHECKING:
    from distributed_privrl.agents.expert_policies import ExpertPolicies

EXPERTS_KEY = "experts"
"""Where a dataset's metadata say what `ExpertFacts` holds."""
UNIT_COLUMN = "expert"
"""What the recipes call the unit of a dataset of experts."""
SHARD_EXPERTS = 500
"""Experts in a file at most."""
FOLDER = "experts"
"""Where they lie in a dataset's folder, beside its data."""
LOG_PROBABILITIES = "log_probabilities.safetensors"


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """What is public of a dataset of experts; its metadata's key `EXPERTS_KEY`.

    Args:
        count: number m of experts.
        trajectories: number n of trajectories of each.
        minimum_probability: p_min of every expert that collected them.
        max_length: most steps L of a trajectory.
        shared_policy: one network told of each expert's physics stands for all of them.
        log_probabilities: the log-probability of each recorded action is there.
    """

    count: int
    trajectories: int
    minimum_probability: float
    max_length: int
    shared_policy: bool
    log_probabilities: bool

    @classmethod
    def of(cls, info: DatasetInfo) -> Self:
        """Return what a dataset's metadata say.

        Raises:
            ConfigError: the dataset was not collected from experts, or its metadata are not whole.
        """
        found = info.metadata.open(Purpose.CHECK).get(EXPERTS_KEY)
        names = set(cls.__dataclass_fields__)
        if not isinstance(found, Mapping) or not names.issubset(found):
            raise ConfigError(
                f"dataset {info.id!r} has no metadata key {EXPERTS_KEY!r} with"
                f" {', '.join(sorted(names))}: collect it with a recipe experts-*, put the policies"
                " that acted beside it (docs/expert.md, From your own experts), or set"
                " filter.share=0, which needs none"
            )
        return cls(**{name: found[name] for name in names})

    def as_metadata(self) -> dict[str, Any]:
        """Return what metadata hold under `EXPERTS_KEY`."""
        return asdict(self)


def unit_of_expert(number: int) -> int:
    """Return the unit id of the expert called ``expert <number>``."""
    return hash_unit(f"{UNIT_COLUMN} {number}")


def experts_folder(store: DatasetStore, dataset: str) -> Path:
    """Return where a dataset's experts lie, beside its data."""
    return store.folder(dataset) / FOLDER


def expert_files(store: DatasetStore, dataset: str) -> list[Path]:
    """Return the files of a dataset's experts, in the order of the experts.

    Raises:
        ConfigError: no such dataset.
        StorageError: it has no experts.
    """
    folder = experts_folder(store, dataset)
    found = sorted(folder.glob("policies-*.safetensors"))
    if not found:
        raise StorageError(f"{folder} holds no experts: collect the dataset again")
    return found


def policy_units(store: DatasetStore, dataset: str) -> NDArray[np.uint64]:
    """Return the unit of each of a dataset's policies, (E,), and read nothing else of them.

    Raises:
        ConfigError: no such dataset.
        StorageError: it has no experts, or they cannot be read.
    """
    parts = []
    for path in expert_files(store, dataset):
        try:
            with storage_errors(f"read {path}"):
                check_holes(path)
            with storage_errors(f"read {path}"), safetensors.safe_open(path, "np") as file:
                parts.append(file.get_tensor("unit_ids").view(np.uint64))
        except (safetensors.SafetensorError, ValueError) as error:
            raise StorageError(f"{path} holds no expert policies: collect them again") from error
    return np.concatenate(parts)


def policies_digest(store: DatasetStore, dataset: str) -> str:
    """Return the SHA-256 (hexadecimal) of a dataset's experts, file by file: for the ledger alone.

    Raises:
        ConfigError: no such dataset.
        StorageError: it has no experts, or they cannot be read.
    """
    digest = hashlib.sha256()
    for path in expert_files(store, dataset):
        with storage_errors(f"read {path}"), path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def write_experts(folder: Path, policies: "ExpertPolicies", *, mode: int = 0o600) -> None:
    """Write policies as files of at most `SHARD_EXPERTS` experts.

    Raises:
        StorageError: they cannot be written.
    """
    for start in range(0, len(policies), SHARD_EXPERTS):
        shard = policies.part(start, min(start + SHARD_EXPERTS, len(policies)))
        shard.save(folder / f"policies-{start:07d}.safetensors", mode=mode)


def write_log_probabilities(
    folder: Path, values: NDArray[np.float32], *, mode: int = 0o600
) -> None:
    """Write the log-probability of each recorded action, ``(N,)`` in the dataset's order.

    Raises:
        StorageError: they cannot be written.
    """
    content = safetensors.numpy.save({"log_probabilities": values})
    write_atomically(folder / LOG_PROBABILITIES, content, mode=mode)


def read_log_probabilities(store: DatasetStore, dataset: str) -> NDArray[np.float32]:
    """Return the log-probability of each recorded action, ``(N,)`` in the dataset's order.

    Raises:
        ConfigError: no such dataset.
        StorageError: they are not there, or are not one a row.
    """
    path = experts_folder(store, dataset) / LOG_PROBABILITIES
    rows = store.info(dataset).total_steps.open(Purpose.COMPUTING)
    try:
        with storage_errors(f"read {path}"):
            check_holes(path)
        with storage_errors(f"read {path}"), safetensors.safe_open(path, "np") as file:
            values: NDArray[np.float32] = file.get_tensor("log_probabilities")
    except (safetensors.SafetensorError, ValueError) as error:
        raise StorageError(f"{path} holds no log-probabilities: collect them again") from error
    if values.shape != (rows,) or values.dtype != np.float32:
        raise StorageError(
            f"{path} must hold {rows} numbers, one a row, got {values.dtype} {values.shape}"
        )
    return values
