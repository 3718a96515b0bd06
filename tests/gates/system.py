"""The system that gates look at: real workers, server, mechanism, noise and ledger, observed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.shards import EncodedShard, ShardRef
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import ShardSource, StoredShard, WorkerSpec
from distributed_privrl.updates.gradient import GradientLocalUpdate
from tests.worlds.toy import ToyLoss, ToyNetwork
from tests.worlds.toy_run import RUN_ID, UNITS, ToyRun

CLIP_NORM = 1.5


@dataclass(frozen=True, kw_only=True)
class TableShard:
    """Units that hold one row each.

    Args:
        rows: of all units, ``(U, D)``.
        valid: ``(U,)``; None: all.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_] | None = None

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        ids = np.arange(len(self.rows), dtype=np.uint64)
        mine = np.ones(len(ids), bool) if keep is None else keep(ids)
        valid = np.ones(len(ids), bool) if self.valid is None else self.valid
        return EncodedShard(
            rows=np.ascontiguousarray(self.rows[mine], np.float32),
            valid=valid[mine],
            unit_ids=ids[mine],
            offsets=np.arange(mine.sum() + 1, dtype=np.int64),
        )


@dataclass(frozen=True)
class CoordinateLoss:
    """The gradient of row (i, s) is s times the i-th unit vector."""

    dimension: int
    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        chosen = torch.zeros(len(rows), self.dimension, dtype=rows.dtype)
        chosen[torch.arange(len(rows)), rows[:, 0].long()] = 1
        return rows[:, 1] * module(chosen)[:, 0]


@dataclass(frozen=True)
class FitLoss:
    """Reconstruction without randomness: the same row always has the same gradient."""

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        return (module(rows) - rows).square().sum(dim=1)


@dataclass(frozen=True)
class PatternLoss:
    """A gradient of a few ones and very many small numbers, times the row."""

    dimension: int
    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        pattern = torch.full((self.dimension,), 1.6e-4, dtype=rows.dtype)
        pattern[:8] = 1
        return module(rows) @ pattern


@dataclass(frozen=True, kw_only=True)
class GateUpdate:
    """Factory of a real gradient local update.

    Args:
        network: makes the module.
        loss: of each row.
        dtype: of the parameters.
        clip_norm: L2 bound of a unit.
        per_unit_gradients: which of the two paths.
        micro_batch_rows: rows computed at once.
    """

    network: Callable[[], nn.Module] = ToyNetwork
    loss: Any = field(default_factory=ToyLoss)
    dtype: torch.dtype = torch.float64
    clip_norm: float | None = CLIP_NORM
    per_unit_gradients: Any = "auto"
    micro_batch_rows: int = 256

    @property
    def draw_count(self) -> int:
        return int(self.loss.draw_count)

    def __call__(self) -> GradientLocalUpdate:
        return GradientLocalUpdate(
            module=self.network().to(self.dtype),
            row_loss=self.loss,
            clip_norm=self.clip_norm,
            per_unit_gradients=self.per_unit_gradients,
            micro_batch_rows=self.micro_batch_rows,
        )


def coordinate_update(dimension: int) -> GateUpdate:
    """Return an update under which unit (i, s) adds s, clipped, to coordinate i alone."""
    return GateUpdate(
        network=lambda: nn.Linear(dimension, 1, bias=False),
        loss=CoordinateLoss(dimension),
        dtype=torch.float32,
    )


@dataclass(frozen=True, kw_only=True)
class GateRun(ToyRun):
    """A run with real, unseeded randomness.

    Args:
        sources: where the workers' units are, one a worker; None: the toy's.
        declared_units: the public number of units.
        draw_ahead: the server prepares noise while workers compute.
        all_rows: every row of a unit takes part in its vector, not one drawn for each copy.
    """

    insecure_key: int | None = None
    update: GateUpdate = field(default_factory=GateUpdate)  # type: ignore[assignment]
    sources: Sequence[ShardSource] | None = None
    declared_units: int = UNITS
    draw_ahead: bool = False
    all_rows: bool = False

    @property
    def mechanism(self) -> PrivateRound | None:
        mechanism = super().mechanism
        return None if mechanism is None else replace(mechanism, clip_norm=CLIP_NORM)

    @property
    def expected_units(self) -> float:
        return self.sampling_probability * self.declared_units

    def open(self) -> None:
        initial = self.folder / "initial.safetensors"
        if not initial.exists():
            parameters = [p.detach().reshape(-1) for p in self.update().module.parameters()]
            state = CheckpointState(run_id=RUN_ID, round_index=0, stage="pretraining")
            save_checkpoint(initial, {"parameters": torch.cat(parameters)}, state)
        super().open()

    def worker_specs(self) -> list[WorkerSpec]:
        specs = super().worker_specs()
        if self.sources is None:
            return specs
        assert len(self.sources) == self.workers
        return [
            replace(spec, source=source, all_rows=self.all_rows)
            for spec, source in zip(specs, self.sources, strict=True)
        ]

    def server_spec(self, workers: WorkerGroup) -> ServerSpec:
        return replace(
            super().server_spec(workers),
            expected_units=self.expected_units,
            draw_ahead=self.draw_ahead,
        )

    def entry(self) -> LedgerEntry:
        entry = self.ledger.reserved(RUN_ID)
        assert entry is not None, "the run has no entry in the ledger"
        return entry

    def charged_deviation(self) -> float:
        """Return the standard deviation that the ledger's event stands for."""
        return float(self.entry().event["events"][0]["noise_multiplier"]) * CLIP_NORM


@dataclass
class Observation:
    """What passed through a run, round after round, each ``(P,)`` float64.

    Args:
        sums: what the noise source was given.
        noisy: what it gave back.
        steps: the server's gradients times the public denominator.
    """

    sums: list[NDArray[np.float64]] = field(default_factory=list)
    noisy: list[NDArray[np.float64]] = field(default_factory=list)
    steps: list[NDArray[np.float64]] = field(default_factory=list)


@contextmanager
def observed(
    expected_units: float, *, on_draw: Callable[[int], None] | None = None
) -> Iterator[Observation]:
    """Watch the innermost Gaussian draw and servers' optimisers, whatever lies between them.

    Args:
        expected_units: the public denominator.
        on_draw: called before each draw with the number of draws so far.
    """
    seen = Observation()
    draw, start = SecureNoise._add_normals, ParameterServer.__init__

    def spy_draw(
        self: SecureNoise, tag: int, values: Any, out: Any, factor: float, granularity: float
    ) -> None:
        if on_draw is not None:
            on_draw(len(seen.sums))
        seen.sums.append(np.array(values, np.float64))
        draw(self, tag, values, out, factor, granularity)
        seen.noisy.append(out.copy())

    def spy_start(self: ParameterServer, spec: ServerSpec) -> None:
        start(self, spec)
        step = self._optimiser.step

        def spy_step(gradient: Tensor) -> None:
            seen.steps.append(gradient.double().numpy() * expected_units)
            step(gradient)

        self._optimiser.step = spy_step  # type: ignore[method-assign]

    with (
        patch.object(SecureNoise, "_add_normals", spy_draw),
        patch.object(ParameterServer, "__init__", spy_start),
    ):
        yield seen


def observe(run: GateRun) -> Observation:
    """Run all rounds and return what passed through."""
    with observed(run.expected_units) as seen:
        run.train()
    return seen


@dataclass(frozen=True)
class System:
    """Makes runs in folders of their own, and the units that they are given.

    Args:
        folder: for all of them.
        canaries: how many orthogonal ones an attacker gets.
    """

    folder: Path
    canaries: int = 20_000

    def run(self, **settings: Any) -> GateRun:
        """Return a new run."""
        folder = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return GateRun(folder=folder, **settings)

    def units(
        self, rows: NDArray[Any], count: int, valid: NDArray[np.bool_] | None = None
    ) -> tuple[ShardSource, ...]:
        """Return what ``count`` workers read: the rows of a table, unit i's vector that of row i.

        Args:
            rows: ``(U, D)``.
            count: of workers, each of which keeps the units of its blocks.
            valid: ``(U,)``; None: all.
        """
        return (TableShard(rows=rows, valid=valid),) * count

    def stored(self, ref: ShardRef, encoder: TransitionEncoder) -> ShardSource:
        """Return the source of a stored dataset's shard."""
        return StoredShard(ref=ref, encoder=encoder.to_json())
