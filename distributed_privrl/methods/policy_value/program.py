"""What reads the units: workers that sum their integers, and what releases the sums."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.data.proper import proper_trajectories
from distributed_privrl.data.shards import ShardRef, load_trajectories
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.off_policy.judge import decided
from distributed_privrl.evaluation.off_policy.models import Cells
from distributed_privrl.evaluation.off_policy.released import ReleasedModels
from distributed_privrl.methods.policy_value.sums import NUMBERS, unit_integers
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.releases import Program


@dataclass(frozen=True, kw_only=True)
class SumSpec:
    """What a worker is built from: a reference to data and what was fitted on released rows.

    Args:
        ref: which shard.
        max_trajectories_per_unit: public cap.
        returns: public bounds of a return.
        action_space: Discrete.
        policy: that is judged.
        models: who acted, and what actions are worth.
    """

    ref: ShardRef
    max_trajectories_per_unit: int
    returns: tuple[float, float]
    action_space: Space
    policy: Policy
    models: ReleasedModels


class SumWorker:
    """Owns a shard and sums the integers of its units.

    Privacy: a unit adds its `unit_integers`, which depend on its own first episodes alone;
    an episode with a row that is not proper is left out, and a unit without one adds zeros. Sums
    are integers: exact, in any order. They are raw: the server adds noise before anything else.
    """

    def __init__(self, spec: SumSpec) -> None:
        self._spec = spec

    def sums(self) -> NDArray[np.int64]:
        """Return the sums (4,)."""
        spec = self._spec
        read = load_trajectories(spec.ref, max_trajectories_per_unit=spec.max_trajectories_per_unit)
        store = DatasetStore(spec.ref.root)
        proper = proper_trajectories(store, spec.ref.dataset, read)
        policy = decided(spec.policy, Cells.discrete(spec.action_space))
        total = np.zeros(NUMBERS, np.int64)
        for episodes in proper.by_unit():
            total += unit_integers(spec.models.figures(episodes, policy), spec.returns)
        return total


class SumProgram(Program):
    """Releases the sums of all units, once.

    Privacy: see `SumWorker` and `release_of_sums`; what is kept is noisy.

    Args:
        release: draws the noise; None without privacy.
    """

    def __init__(self, release: DiscreteLaplaceRelease | None) -> None:
        self._release = release
        self._sums = np.zeros(NUMBERS, np.int64)

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Gather the sums and add the noise; see `Program.step`."""
        total: NDArray[np.int64] = np.stack(workers.call("sums")).sum(axis=0)
        if self._release is not None and noise is not None:
            total = self._release.release(total, noise, tag=index)
        self._sums = total

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the sums (4,)."""
        return {"sums": torch.from_numpy(self._sums.copy())}

    def restore(self, tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        """Take up what `tensors` returned."""
        self._sums = tensors["sums"].numpy().copy()


@dataclass(frozen=True, eq=False)
class Programs:
    """Builds the program in the server's process.

    Args:
        release: of the plan.
    """

    release: DiscreteLaplaceRelease | None

    def __call__(self) -> SumProgram:
        """Return a fresh program."""
        return SumProgram(self.release)
