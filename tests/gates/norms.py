"""Gates on what one unit can add to a round's sum: L2 norm C at most, whatever it holds."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import nn

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.rounds.worker import ShardSource
from tests.gates.system import (
    CLIP_NORM,
    FitLoss,
    GateUpdate,
    PatternLoss,
    System,
    observe,
)
from tests.worlds.toy import ToyNetwork

PATHS = ("book_keeping", "opacus", "single", "formed")
TOLERANCE = 1e-6
CANARIES: dict[str, NDArray[np.float64]] = {
    "huge": np.full(5, 1e6),
    "mixed": np.array([1e6, -1e-6, 0.0, 1e3, 1e-42]),
    "overflowing": np.full(5, 3e38),
    "denormal": np.full(5, 1e-42),
    "nan": np.array([0.0, np.nan, 0.0, 0.0, 0.0]),
    "infinite": np.array([np.inf, 0.0, -np.inf, 0.0, 0.0]),
}
CLIPPED, NULL = ("huge", "mixed"), ("nan", "infinite")


def clipped_sum(
    system: System, update: GateUpdate, sources: tuple[Any, ...], **settings: Any
) -> NDArray[np.float64]:
    """Return the sum of one round in which everybody takes part, with the noise off."""
    run = system.run(
        workers=len(sources),
        sources=sources,
        update=update,
        declared_units=1,
        noise_multiplier=None,
        sampling_probability=1.0,
        rounds=1,
        **settings,
    )
    (total,) = observe(run).steps
    return total


def assert_within(difference: NDArray[np.float64], what: str) -> float:
    """Fail if a unit moved the sum by more than C; return by how many C."""
    distance = float(np.linalg.norm(difference)) / CLIP_NORM
    assert distance <= 1 + TOLERANCE, f"{what} moves the sum by {distance:.6f} C"
    return distance


def gate_norm_canaries(system: System) -> None:
    """One unit moves the sum by C at most, by C if it is huge, and not at all if not finite."""
    others = np.random.default_rng(4).normal(size=(12, 5))
    for path in PATHS:
        for dtype in (torch.float64, torch.float32):
            update = GateUpdate(loss=FitLoss(), dtype=dtype, per_unit_gradients=path)
            without = clipped_sum(system, update, system.units(others, 2))
            for name, canary in CANARIES.items():
                table = np.concatenate([others[:6], canary[None], others[6:]])
                with np.errstate(over="ignore"):
                    sources = system.units(table, 2)
                total = clipped_sum(system, update, sources, copies=2)
                what = f"a {name} unit ({path}, {dtype})"
                moved = assert_within(total - without, what)
                assert name not in CLIPPED or moved > 0.999, f"{what} is clipped to {moved:.3f} C"
                assert name not in NULL or moved < TOLERANCE, f"{what} is not null"


def gate_large_norms(system: System) -> None:
    """Norms are measured in float64: a float32 norm loses many small numbers beside large ones."""
    dimension = 1_000_000
    rows = np.full((1, 1), 50.0)
    for path in PATHS:
        update = GateUpdate(
            network=lambda: nn.Linear(1, dimension, bias=False),
            loss=PatternLoss(dimension),
            dtype=torch.float32,
            per_unit_gradients=path,
        )
        total = clipped_sum(system, update, system.units(rows, 1))
        moved = assert_within(total, f"a unit of {dimension} numbers ({path})")
        assert moved > 0.999


def gate_split_units(system: System) -> None:
    """A unit spread over many trajectories, rows and copies still moves the sum by C at most."""
    for path in PATHS:
        update = GateUpdate(network=lambda: ToyNetwork(7), loss=FitLoss(), per_unit_gradients=path)
        null, present = (
            clipped_sum(system, update, stored_units(system, name, value), copies=3)
            for name, value in ((f"gate/null-{path}-v0", np.nan), (f"gate/split-{path}-v0", 900.0))
        )
        moved = assert_within(present - null, f"a unit of 4 trajectories ({path})")
        assert moved > 0.99, f"a unit of 4 trajectories is clipped to {moved:.3f} C"


def stored_units(system: System, name: str, value: float) -> tuple[ShardSource, ...]:
    """Store 12 trajectories of which numbers 1, 4, 5 and 10 are patient 1's, all ``value``."""
    count, length = 12, 3
    patients = np.arange(count, dtype=np.uint64)
    patients[[1, 4, 5, 10]] = 1
    values = np.where(patients == 1, value, 0.1 * patients.astype(float))
    observations = np.repeat(values, length + 1)[:, None] * np.ones(2)
    trajectories = Trajectories(
        observations=observations,
        actions=np.zeros((count * length, 1)),
        rewards=np.repeat(values, length),
        terminated=np.zeros(count * length, bool),
        truncated=np.zeros(count * length, bool),
        offsets=offsets_of([length] * count),
        unit_ids=patients,
    )
    spaces = Box(-np.inf, np.inf, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)
    store = DatasetStore(system.folder / "datasets")
    store.write_trajectories(
        name,
        trajectories,
        observation_space=spaces[0],
        action_space=spaces[1],
        unit_column="patient_id",
    )
    encoder = TransitionEncoder(*spaces, Scaling(offset=np.zeros(7), scale=np.ones(7)))
    (ref,) = shard_refs(store, name, count=1, unit="patient_id")
    return (system.stored(ref, encoder),) * 3
