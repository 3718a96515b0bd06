"""Where rollouts of the model begin: the environment's resets, or a released Gaussian.

Never private rows: a rollout from a recorded start would show it.

Reference: PriMORL, section 4.3.2 (rho_0); PRIVACY.md section 5.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.spaces import environment_spaces
from distributed_privrl.methods.primorl.config import NoisyStarts
from distributed_privrl.privacy.calibration import calibrate_discrete_laplace
from distributed_privrl.privacy.exact_releases import FixedPointLaplaceRelease
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import Question

_RESET_SEEDS = 2**31


class StartStates(Protocol):
    """Gives rollouts their first observations."""

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``(count, O)``, raw, float32, on the CPU."""
        ...


@dataclass(frozen=True, eq=False)
class PooledStarts:
    """A pool of public start observations.

    Args:
        pool: (P, O), raw, float32.

    Raises:
        ConfigError: the pool is empty.
    """

    pool: Tensor

    def __post_init__(self) -> None:
        if self.pool.dim() != 2 or not len(self.pool):
            raise ConfigError(f"pool must be (P, O) with P > 0, got {tuple(self.pool.shape)}")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``(count, O)`` of the pool, drawn with replacement."""
        return self.pool[torch.randint(len(self.pool), (count,), generator=generator)]


def environment_starts(environment: str, *, count: int, streams: Streams) -> PooledStarts:
    """Return the first observations of ``count`` resets of a registered environment.

    Args:
        environment: Gymnasium id of a public simulator.
        count: resets (P).
        streams: public random streams; they seed the resets.

    Raises:
        ConfigError: the environment is not registered, or cannot be made.
    """
    check_positive("count", count)
    made = environment_spaces(environment)[2]
    first = streams.integer("resets")
    pool = [
        gymnasium.spaces.flatten(
            made.observation_space, made.reset(seed=(first + index) % _RESET_SEEDS)[0]
        )
        for index in range(count)
    ]
    made.close()  # type: ignore[no-untyped-call]
    return PooledStarts(torch.from_numpy(np.array(pool)).float())


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianStarts:
    """A Gaussian, its draws clipped to public bounds.

    Args:
        mean: (O,), raw.
        root: (O, O), a square root of the covariance: root @ root.T.
        low: (O,), bounds.
        high: (O,).
    """

    mean: Tensor
    root: Tensor
    low: Tensor
    high: Tensor

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``(count, O)`` draws."""
        noise = torch.randn(count, len(self.mean), generator=generator)
        drawn = self.mean + noise @ self.root.T
        return torch.minimum(torch.maximum(drawn, self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class MomentsRelease:
    """Noisy first and second moments of one vector a unit, x ``(O,)``, clipped to norm R.

    What is summed is (x / R, x_i x_j / R^2 for i <= j), so both parts have a like share of noise.

    Args:
        width: O.
        clip_norm: R, in L2.
        epsilon: what the release costs.
        relation: of the run.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit: whoever contributes x. Relation: ``relation``. Sensitivity: sqrt(O) + (O + 1) / 2 in
        L1, for |x|_1 <= sqrt(O) R and sum_(i<=j) |x_i x_j| = (|x|_1^2 + |x|_2^2) / 2; twice that
        if one unit is replaced by another. A unit's vector is rounded to the release's lattice,
        and the integers are summed exactly; the release pays for the rounding. Event:
        ``discrete_laplace``, pure and exact.
    """

    width: int
    clip_norm: float
    epsilon: float
    relation: Relation

    def __post_init__(self) -> None:
        for name in ("width", "clip_norm", "epsilon"):
            check_positive(name, getattr(self, name))

    @property
    def sensitivity(self) -> float:
        """How far one unit moves the sums, in L1, rounding aside."""
        return self.relation.contributions * (math.sqrt(self.width) + (self.width + 1) / 2)

    def mechanism(self, unit: str) -> FixedPointLaplaceRelease:
        """Return the release of `totals` with the least noise.

        Args:
            unit: what one person contributes.
        """
        budget = PrivacyBudget(epsilon=self.epsilon, delta=0.0, unit=unit, relation=self.relation)
        dimension = self.width + self.width * (self.width + 1) // 2
        return calibrate_discrete_laplace(
            budget=budget, sensitivity=self.sensitivity, dimension=dimension
        )

    def parts(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each unit adds ``(U, O + O (O + 1) / 2)``, in units of R and R^2. Private.

        Args:
            vectors: (U, O), standardised; a row that is not finite, in units of R, counts as zero.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            rows = vectors / self.clip_norm
        # After the division: what was finite may have overflowed in it.
        rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
        # Scaled down first, so that squares of huge numbers stay finite.
        largest = np.maximum(1.0, np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
        rows = rows / largest
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows * np.minimum(largest, 1 / np.maximum(norms, 1e-300))
        upper = np.triu_indices(self.width)
        return np.concatenate([rows, rows[:, upper[0]] * rows[:, upper[1]]], axis=1)

    def totals(
        self, vectors: NDArray[np.float64], mechanism: FixedPointLaplaceRelease
    ) -> NDArray[np.int64]:
        """Return the sums over units, in steps of ``mechanism``'s lattice. Private: for it alone.

        Args:
            vectors: as for `parts`.
            mechanism: that of this release.
        """
        return np.asarray(mechanism.to_steps(self.parts(vectors)).sum(axis=0), np.int64)

    def moments(
        self, totals: NDArray[np.float64], units: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean ``(O,)`` and a root of the covariance ``(O, O)`` from noisy ``totals``.

        Noise can make a covariance of no distribution: its negative eigenvalues become zero.

        Args:
            totals: sums of `parts` over units.
            units: the public number of them.
        """
        first, second = np.split(totals / units, [self.width])
        mean = first * self.clip_norm
        square = np.zeros((self.width, self.width))
        square[np.triu_indices(self.width)] = second * self.clip_norm**2
        square = square + np.triu(square, 1).T
        values, vectors = np.linalg.eigh(square - np.outer(mean, mean))
        return mean, vectors * np.sqrt(np.maximum(values, 0.0))


def starts_question(
    asked: NoisyStarts,
    data: DataConfig,
    context: RunContext,
    *,
    encoder: TransitionEncoder,
    bounds: Bounds,
    relation: Relation,
    units: UnitCount,
) -> Question[GaussianStarts]:
    """Return the question for a Gaussian of start observations.

    Args:
        asked: at what cost.
        data: the sensitive dataset and its unit.
        context: store and noise of the run.
        encoder: its public offsets and scales standardise; Box observations.
        bounds: public; draws are clipped to them.
        relation: of the run.
        units: how many there are; the fixed denominator.

    Raises:
        ConfigError: the dataset has no trajectories of this unit.

    Privacy: unit ``data.unit``, relation as given. A unit's vector is the mean of the first
    observations of its trajectories, those that are not finite left out, silently; without any it
    is zero. Sensitivity: that of `MomentsRelease`. Event: ``discrete_laplace``. Exact moments stay
    in this process and are written nowhere; mean and covariance are post-processing.
    """
    columns = encoder.layout.blocks["observation"]
    offset, scale = encoder.scaling.offset[columns], encoder.scaling.scale[columns]
    release = MomentsRelease(
        width=len(offset),
        clip_norm=asked.clip_norm or math.sqrt(len(offset)),
        epsilon=asked.epsilon,
        relation=relation,
    )
    mechanism = release.mechanism(data.unit)

    def draw() -> list[float]:
        vectors = (_first_observations(data, context, len(offset)) - offset) / scale
        totals = release.totals(vectors, mechanism)
        return [float(v) for v in mechanism.release(totals, context.noise_source())]

    def found(answer: list[float]) -> GaussianStarts:
        mean, root = release.moments(np.array(answer, np.float64), units.value)
        return GaussianStarts(
            mean=torch.from_numpy(mean * scale + offset).float(),
            root=torch.from_numpy(root * scale[:, None]).float(),
            low=torch.from_numpy(bounds.low[columns]).float(),
            high=torch.from_numpy(bounds.high[columns]).float(),
        )

    return Question(
        event=mechanism.event,
        facts={
            "offset": offset.tolist(),
            "scale": scale.tolist(),
            "clip_norm": release.clip_norm,
        },
        draw=draw,
        found=found,
    )


def _first_observations(data: DataConfig, context: RunContext, width: int) -> NDArray[np.float64]:
    """Return ``(U, O)``, a unit's mean in each row. Private: for `MomentsRelease` alone."""
    sums: dict[int, NDArray[np.float64]] = {}
    counts: dict[int, int] = {}
    for chunk in context.store.iter_trajectories(data.sensitive, unit=data.unit, most_rows=1):
        first = chunk.observations[chunk.offsets[:-1] + np.arange(len(chunk))].astype(np.float64)
        finite = np.isfinite(first).all(axis=1)
        for unit, row in zip(chunk.unit_ids[finite].tolist(), first[finite], strict=True):
            sums[unit] = sums[unit] + row if unit in sums else row
            counts[unit] = counts.get(unit, 0) + 1
    found = [sums[unit] / counts[unit] for unit in sums]
    return np.stack(found) if found else np.zeros((0, width))
