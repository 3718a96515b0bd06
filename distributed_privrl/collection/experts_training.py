"""Experts in blocks: trained, at play and kept on disk, so that nothing is done twice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import unit_of_expert
from distributed_privrl.collection.experts_episodes import Played, play_experts
from distributed_privrl.collection.experts_ppo import Networks
from distributed_privrl.collection.replay_training import folder_name
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.simulators import PerturbedSimulator

BLOCK_EXPERTS = 100
"""Experts that are trained at a time, and that an interruption may cost."""

_ROWS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


@dataclass(frozen=True, kw_only=True)
class ExpertPlan:
    """Which experts are trained and how often they act; all of it is public.

    Args:
        environment: Gymnasium id.
        experts: their number (m).
        trajectories: of each (n).
        max_length: steps of a trajectory at most (L).
        minimum_probability: of each action (p_min).
        training: what else decides the result, JSON values.
        seed: public seed.
    """

    environment: str
    experts: int
    trajectories: int
    max_length: int
    minimum_probability: float
    training: Mapping[str, Any]
    seed: int

    @property
    def folder_name(self) -> str:
        """A hidden folder's name that no other plan has, nor another version of the package."""
        return folder_name(
            self.environment, {"experts": True, **vars(self), "training": dict(self.training)}
        )

    @property
    def blocks(self) -> list[range]:
        """Numbers of the experts of each block."""
        return [
            range(first, min(first + BLOCK_EXPERTS, self.experts))
            for first in range(0, self.experts, BLOCK_EXPERTS)
        ]

    @property
    def streams(self) -> Streams:
        """The plan's public randomness."""
        return Streams(self.seed).child(f"collection/experts/{self.environment}")


class Trainer(Protocol):
    """Trains the experts of a block."""

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from observations, and by what they are then divided, (O,) each."""
        ...

    def described(self) -> dict[str, Any]:
        """Return all that decides the result beside settings and streams, JSON values."""
        ...

    def train(self, settings: Mapping[str, NDArray[np.float64]], streams: Streams) -> Networks:
        """Return stacked policies: scores of the actions of normalised observations.

        Args:
            settings: parameters of each expert's setting, (E,) by name.
            streams: public randomness of the block.
        """
        ...


def make_blocks(
    plan: ExpertPlan,
    trainer: Trainer,
    simulator: PerturbedSimulator,
    settings: Mapping[str, NDArray[np.float64]],
    folder: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train the plan's experts and let them act, as far as that is not done.

    Args:
        plan: which experts.
        trainer: of a block.
        simulator: the environment on which all of them act.
        settings: parameters of each expert's setting, (m,) by name.
        folder: where blocks are kept.
        progress: called with experts done and in total.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    for block, numbers in enumerate(plan.blocks):
        path = rows_path(folder, block)
        if not path.exists():
            own = plan.streams.child(f"block/{block}")
            chosen = {
                name: values[numbers.start : numbers.stop] for name, values in settings.items()
            }
            networks = trainer.train(chosen, own.child("training"))
            policies = _policies(plan, trainer, networks, numbers)
            played = play_experts(
                simulator,
                policies,
                episodes=plan.trajectories,
                max_length=plan.max_length,
                streams=own.child("episodes"),
            )
            policies.save(policies_path(folder, block))
            _save_rows(path, played)
        if progress is not None:
            progress(numbers.stop, plan.experts)


def policies_path(folder: Path, block: int) -> Path:
    """Return where the policies of a block lie."""
    return folder / f"policies-{block:05d}.safetensors"


def rows_path(folder: Path, block: int) -> Path:
    """Return where the rows of a block lie; they are written last."""
    return folder / f"rows-{block:05d}.safetensors"


def read_rows(folder: Path, block: int) -> Played:
    """Return the episodes of a block.

    Raises:
        StorageError: they cannot be read.
    """
    path = rows_path(folder, block)
    try:
        with storage_errors(f"read {path}"):
            found = safetensors.torch.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise StorageError(f"{path} is damaged: delete it and collect again") from error
    columns = {name: found[name].numpy() for name in _ROWS}
    units = found["unit_ids"].numpy().view(np.uint64)
    return Played(Trajectories(**columns, unit_ids=units), found["log_probabilities"].numpy())


def _policies(
    plan: ExpertPlan, trainer: Trainer, networks: Networks, numbers: range
) -> ExpertPolicies:
    offset, scale = trainer.normalisation
    return ExpertPolicies(
        weights=tuple(networks.weights),
        biases=tuple(networks.biases),
        activation="tanh",
        minimum_probability=plan.minimum_probability,
        unit_ids=np.array([unit_of_expert(number) for number in numbers], dtype=np.uint64),
        offset=offset,
        scale=scale,
        conditions=networks.conditions,
    )


def _save_rows(path: Path, played: Played) -> None:
    columns = {name: getattr(played.trajectories, name) for name in _ROWS}
    columns["unit_ids"] = played.trajectories.unit_ids.view(np.int64)
    columns["log_probabilities"] = played.log_probabilities
    tensors = {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in columns.items()}
    write_atomically(path, safetensors.torch.save(tensors), mode=0o600)
