"""Weights that somebody wrote to harm: refused within bounds of memory and time."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import StorageError
from distributed_privrl.methods.primorl.ensemble import load_ensemble
from distributed_privrl.methods.value_iteration.features import FeatureMap
from tests.worlds.bounded import bounded

HUGE = 2**36
"""Bytes of one tensor."""
LOADERS: dict[str, Callable[[Path], object]] = {
    "policy": Policy.load,
    "experts": lambda path: ExpertPolicies.load(path, 0, None),
    "feature map": FeatureMap.load,
    "ensemble": load_ensemble,
}
NAMES = ("table", "parameters", "unit_ids", "weight_0", "0.weight", "log_probabilities")


def with_tensors(path: Path, tensors: dict[str, object], *, size: int) -> Path:
    """Write a header of safetensors, and leave a hole of ``size`` bytes for its tensors."""
    about = dict.fromkeys(("policy", "ensemble", "actions", "experts", "role"), "{}")
    header = json.dumps({"__metadata__": about, **tensors}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return path


def tensor(start: int, stop: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_file_that_is_a_hole_is_not_read(kind: str, tmp_path: Path) -> None:
    part = HUGE // len(NAMES) // 8 * 8
    tensors = {name: tensor(i * part, (i + 1) * part) for i, name in enumerate(NAMES)}
    path = with_tensors(tmp_path / "weights.safetensors", tensors, size=part * len(NAMES))
    assert path.stat().st_size > 2**35
    with bounded(), pytest.raises(StorageError) as refused:
        LOADERS[kind](path)
    assert "weights.safetensors" in str(refused.value)
    assert "bytes" in str(refused.value.__cause__ or refused.value)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 10**6) + b"[" * 10**6,
    ],
    ids=["a long header", "nothing", "a deep header"],
)
def test_headers_that_lie_are_refused(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with bounded(), pytest.raises(StorageError):
        LOADERS[kind](path)


@pytest.mark.parametrize("kind", LOADERS)
def test_tensors_that_are_not_there_are_refused(kind: str, tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "weights.safetensors", {"table": tensor(0, HUGE)}, size=64)
    with bounded(), pytest.raises(StorageError):
        LOADERS[kind](path)
