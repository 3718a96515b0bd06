"""The worker of a private round: it owns blocks of slots, draws which take part, and sums."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.fragments import FragmentEncoder, load_fragments
from distributed_privrl.data.shards import EncodedShard, ShardRef, load_shard
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.sampling import (
    EMPTY,
    RoundSecret,
    SlotCoins,
    UnitPlacement,
    UnitRandomness,
)
from distributed_privrl.updates.local_update import LocalUpdate, UnitBatch

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
    """Says where units come from; picklable, holds no arrays."""

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        """Load the units that ``keep`` chooses by their ids, in the worker's process."""
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

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        """Read and encode the shard, or of it what ``keep`` chooses."""
        return load_shard(self.ref, TransitionEncoder.from_json(self.encoder), keep=keep)


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

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        """Read, cut and encode the shard, or of it what ``keep`` chooses."""
        encoder = FragmentEncoder.from_json(self.encoder)
        return load_fragments(self.ref, encoder, self.max_fragments_per_unit, keep=keep)


@dataclass(frozen=True, kw_only=True)
class SecretOfRun:
    """Where a worker reads the secret that its coins follow from; travels without it.

    Args:
        run_id: the run's entry in the ledger.
        ledger: holds the secret until the run settles; None without privacy, where coins protect
            nobody and follow from the run's name.
        insecure_key: keyed coins for tests; the certificate is then invalid.
    """

    run_id: str
    ledger: Ledger | None = None
    insecure_key: int | None = None

    def __call__(self) -> RoundSecret:
        """Read the secret.

        Raises:
            UnsafeError: the ledger has no such entry, or erased its secret when the run settled.
        """
        if self.ledger is not None and self.insecure_key is None:
            return RoundSecret(self.ledger.secret(self.run_id))
        name = self.run_id if self.insecure_key is None else f"insecure {self.insecure_key}"
        return RoundSecret(hashlib.sha256(name.encode()).digest())


class SecretSource(Protocol):
    """Gives the secret of a run in the worker's process."""

    def __call__(self) -> RoundSecret:
        """Return it."""
        ...


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is built from: references and public facts.

    Args:
        source: where units are.
        local_update: builds the method's local update.
        sampling_probability: public probability with which each slot takes part in a round.
        secret: gives what coins, places and draws follow from.
        index: which worker, from 0.
        workers: how many there are; worker i owns the i-th part of the blocks.
        blocks: of slots, a public number that does not depend on ``workers``.
        least_slots: slots of each block at least, empty ones included; 0: as many as units. Where a
            unit may be removed, `slots_of_a_block`.
        copies: rows and noise levels drawn for each unit and averaged before clipping.
        all_rows: every row of an included unit takes part, with ``copies`` noise levels, instead of
            ``copies`` drawn ones; all are averaged before clipping.
        most_rows: public bound on a unit's rows, to which ``all_rows`` pads; None without privacy.

    Raises:
        ConfigError: more workers than blocks, or ``index`` is none of theirs.
    """

    source: ShardSource
    local_update: LocalUpdateFactory
    sampling_probability: float
    secret: SecretSource
    index: int = 0
    workers: int = 1
    blocks: int = 1
    least_slots: int = 0
    copies: int = 1
    all_rows: bool = False
    most_rows: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.workers <= self.blocks:
            raise ConfigError(
                f"worker {self.index} of {self.workers} has no block of {self.blocks}: lower"
                " runtime.workers or raise runtime.blocks"
            )

    @property
    def own_blocks(self) -> range:
        """The blocks of this worker."""
        first, last = (self.blocks * i // self.workers for i in (self.index, self.index + 1))
        return range(first, last)

    @property
    def share(self) -> float:
        """The part of all blocks that is this worker's."""
        return len(self.own_blocks) / self.blocks


class LocalUpdateWorker:
    """Owns blocks of slots and computes one clipped partial sum a round.

    Privacy: inclusion is Poisson over slots (independent coins of probability
    ``sampling_probability``), drawn here; indices are neither returned, logged nor stored. Given
    all coins, a unit's block, its place and the shape in which it is computed follow from public
    facts, whatever the others' rows are; a slot without a unit is computed as a null unit. The one
    result is the clipped partial sum; every unit adds one vector of L2 norm <= clip norm to it, a
    unit that is not finite the zero vector. The same nonce gives the same answer, here and in a
    worker that takes the place of a lost one. Event: ``poisson_gaussian`` once the server has
    added its noise.
    """

    summed = frozenset({"clipped_sum"})
    """Methods whose answers may be added up where several workers lie in one process."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        secret = spec.secret()
        placement = UnitPlacement(secret, spec.blocks)
        own = spec.own_blocks

        def is_own(unit_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
            blocks = placement.block_of(unit_ids)
            return (own.start <= blocks) & (blocks < own.stop)

        self._shard = spec.source(is_own)
        self._slots = self._filled_slots(placement)
        self._update = spec.local_update()
        self._coins = SlotCoins(secret)
        self._randomness = UnitRandomness(secret)

    def _filled_slots(self, placement: UnitPlacement) -> dict[int, NDArray[np.int64]]:
        """Return for each own block which unit of the shard has each slot."""
        blocks = placement.block_of(self._shard.unit_ids)
        filled = {}
        for block in self._spec.own_blocks:
            units = np.flatnonzero(blocks == block)
            slots = placement.slots(
                self._shard.unit_ids[units], block=block, least=self._spec.least_slots
            )
            units = np.append(units, EMPTY)  # where EMPTY, the last, points
            filled[block] = units[slots]
        return filled

    def clipped_sum(self, parameters: NDArray[np.floating], nonce: str) -> NDArray[np.float64]:
        """Return the clipped sum ``(P,)`` over the slots that this draw's coins chose.

        Args:
            parameters: flat ``(P,)``.
            nonce: names the draw of noise that the sum is for; another draw has another.

        The array may be overwritten by the next call.
        """
        q, draw = self._spec.sampling_probability, self._coins.draw
        included = [
            slots[draw(len(slots), q, nonce=nonce, block=block)]
            for block, slots in self._slots.items()
        ]
        batch = self._batch(np.concatenate(included), nonce, tuple(map(len, included)))
        return self._update.clipped_sum(parameters, batch)

    def _batch(
        self, chosen: NDArray[np.int64], nonce: str, blocks: tuple[int, ...] | None = None
    ) -> UnitBatch:
        """Return the rows of the units ``(U,)`` of each block, empty slots as null units."""
        spec, shard = self._spec, self._shard
        if not len(shard.unit_ids):
            return self._empty_slots(len(chosen), blocks)
        there = chosen != EMPTY
        own = np.where(there, chosen, 0)
        units = shard.unit_ids[own]
        starts, counts = shard.offsets[own], np.diff(shard.offsets)[own]
        if spec.all_rows:
            counts = np.minimum(counts, self._row_cap(counts))
            row = np.arange(self._row_cap(counts) * spec.copies) // spec.copies
            positions = starts[:, None] + np.minimum(row, counts[:, None] - 1)
        elif len(shard.rows) == len(shard.unit_ids):
            positions = np.repeat(starts[:, None], spec.copies, axis=1)
        else:
            uniforms = self._randomness.uniforms(units, nonce, spec.copies, stream=ROW_STREAM)
            positions = starts[:, None] + np.minimum(
                (uniforms * counts[:, None]).astype(np.int64), counts[:, None] - 1
            )
        valid = shard.valid[positions] & there[:, None]
        rows = shard.rows[positions]
        rows[~there] = 0
        most = self._row_cap(counts) if spec.all_rows else 1
        return UnitBatch(
            rows=rows,
            valid=valid,
            draws=self._draws(units, most, nonce),
            counts=counts * spec.copies if spec.all_rows else None,
            blocks=blocks,
            share=spec.share,
        )

    def _row_cap(self, counts: NDArray[np.int64]) -> int:
        """Return how many rows each unit has room for: a public number, where there is privacy."""
        most = self._spec.most_rows
        return int(counts.max(initial=1)) if most is None else most

    def _empty_slots(self, count: int, blocks: tuple[int, ...] | None) -> UnitBatch:
        """Return ``count`` null units: what a worker without units computes."""
        spec = self._spec
        each = spec.copies * (self._row_cap(np.empty(0, np.int64)) if spec.all_rows else 1)
        width = self._shard.rows.shape[1]
        return UnitBatch(
            rows=np.zeros((count, each, width), np.float32),
            valid=np.zeros((count, each), bool),
            draws=np.zeros((count, each, spec.local_update.draw_count)),
            counts=np.ones(count, np.int64) if spec.all_rows else None,
            blocks=blocks,
            share=spec.share,
        )

    def _draws(self, units: NDArray[np.uint64], most_rows: int, nonce: str) -> NDArray[np.float64]:
        """Return the normals ``(U, K, Z)`` of each unit's rows: no other unit changes a unit's."""
        copies, width = self._spec.copies, self._spec.local_update.draw_count
        draws = np.zeros((len(units), most_rows * copies, width))
        for row in range(most_rows if width else 0):
            draws[:, row * copies : (row + 1) * copies] = self._randomness.normals(
                units, nonce, copies * width, stream=DRAW_STREAM + row
            ).reshape(len(units), copies, width)
        return draws

    def close(self) -> None:
        """Let go of the shard."""
        close = getattr(self._update, "close", None)
        if close is not None:
            close()
