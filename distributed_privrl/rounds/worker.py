"""The worker of a private round: it owns a shard, draws which of its units take part, and sums."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder, load_fragments
from distributed_privrl.data.shards import EncodedShard, ShardRef, load_shard
from distributed_privrl.privacy.sampling import (
    KeyedPoissonSampler,
    PoissonSampler,
    SecurePoissonSampler,
    UnitRandomness,
)
from distributed_privrl.rounds.local_update import LocalUpdate, UnitBatch

ROW_STREAM = 1
DRAW_STREAM = 2  # and those after it: a stream for each row of a unit


class LocalUpdateFactory(Protocol):
    """Builds a local update in the worker's process; picklable, knows public facts alone."""

    @property
    def draw_count(self) -> int:
        """Standard normals that a row's loss needs."""
        ...

    def __call__(self) -> LocalUpdate:
        """Return a fresh local update."""
        ...


class ShardSource(Protocol):
    """Says where a worker's units come from; picklable, holds no arrays."""

    def __call__(self) -> EncodedShard:
        """Load the shard in the worker's process."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredShard:
    """A shard of a stored dataset, encoded with a public encoder.

    Args:
        ref: dataset, shard index and number of shards.
        encoder: JSON of the `TransitionEncoder`.
    """

    ref: ShardRef
    encoder: str

    def __call__(self) -> EncodedShard:
        """Read and encode the shard."""
        return load_shard(self.ref, TransitionEncoder.from_json(self.encoder))


@dataclass(frozen=True, kw_only=True)
class StoredFragments:
    """A shard of a stored dataset's trajectories, cut and encoded with a public encoder.

    Args:
        ref: dataset, shard index and number of shards.
        encoder: JSON of the `FragmentEncoder`.
        max_fragments_per_unit: public cap.
    """

    ref: ShardRef
    encoder: str
    max_fragments_per_unit: int

    def __call__(self) -> EncodedShard:
        """Read, cut and encode the shard."""
        encoder = FragmentEncoder.from_json(self.encoder)
        return load_fragments(self.ref, encoder, self.max_fragments_per_unit)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is built from: references and public facts.

    Args:
        source: where its units are.
        local_update: builds the method's local update.
        sampling_probability: public probability with which each unit takes part in a round.
        copies: rows and noise levels drawn for each unit and averaged before clipping.
        all_rows: every row of an included unit takes part, with ``copies`` noise levels, instead of
            ``copies`` drawn ones; all are averaged before clipping.
        insecure_key: keyed inclusion for tests; the certificate is then invalid. None: a CSPRNG
            keyed in the worker's process.
    """

    source: ShardSource
    local_update: LocalUpdateFactory
    sampling_probability: float
    copies: int = 1
    all_rows: bool = False
    insecure_key: int | None = None


class LocalUpdateWorker:
    """Owns a shard of units and computes one clipped partial sum a round.

    Privacy: inclusion is Poisson over units (independent coins of probability
    ``sampling_probability``), drawn here; indices are neither returned, logged nor stored. The one
    result is the clipped partial sum; every unit adds one vector of L2 norm <= clip norm to it, a
    unit that is not finite the zero vector. Event: ``poisson_gaussian`` once the server has added
    its noise.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._shard = spec.source()
        self._update = spec.local_update()
        key = spec.insecure_key
        self._sampler: PoissonSampler = (
            SecurePoissonSampler() if key is None else KeyedPoissonSampler(key)
        )
        self._randomness = UnitRandomness(key)

    def clipped_sum(
        self, parameters: NDArray[np.floating], round_index: int
    ) -> NDArray[np.floating]:
        """Return the clipped sum ``(P,)`` over the units that this round's coins chose.

        Args:
            parameters: flat ``(P,)``.
            round_index: number of the round, from 0.

        The array may be overwritten by the next call.
        """
        included = self._sampler.draw(
            self._shard.unit_ids, self._spec.sampling_probability, round_index
        )
        return self._update.clipped_sum(parameters, self._batch(included, round_index))

    def _batch(self, included: NDArray[np.int64], round_index: int) -> UnitBatch:
        copies, shard = self._spec.copies, self._shard
        units = shard.unit_ids[included]
        starts, counts = shard.offsets[included], np.diff(shard.offsets)[included]
        if self._spec.all_rows:
            row = np.arange(counts.max(initial=1) * copies) // copies
            positions = starts[:, None] + np.minimum(row, counts[:, None] - 1)
        elif len(shard.rows) == len(shard.unit_ids):
            positions = np.repeat(starts[:, None], copies, axis=1)
        else:
            uniforms = self._randomness.uniforms(units, round_index, copies, stream=ROW_STREAM)
            positions = starts[:, None] + np.minimum(
                (uniforms * counts[:, None]).astype(np.int64), counts[:, None] - 1
            )
        rows = counts if self._spec.all_rows else np.ones_like(counts)
        return UnitBatch(
            rows=shard.rows[positions],
            valid=shard.valid[positions],
            draws=self._draws(units, rows, round_index),
            counts=counts * copies if self._spec.all_rows else None,
        )

    def _draws(
        self, units: NDArray[np.uint64], rows: NDArray[np.int64], round_index: int
    ) -> NDArray[np.float64]:
        """Return the normals ``(U, K, Z)`` of each unit's rows: no other unit changes a unit's."""
        copies, width = self._spec.copies, self._spec.local_update.draw_count
        draws = np.zeros((len(units), rows.max(initial=1) * copies, width))
        for row in range(rows.max(initial=1) if width else 0):
            own = rows > row
            draws[own, row * copies : (row + 1) * copies] = self._randomness.normals(
                units[own], round_index, copies * width, stream=DRAW_STREAM + row
            ).reshape(int(own.sum()), copies, width)
        return draws

    def close(self) -> None:
        """Let go of the shard."""
        close = getattr(self._update, "close", None)
        if close is not None:
            close()
