"""PrivORL-n: a release of independent transitions.

Reference: paper 000, algorithm 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.config import PrivorlConfig, PrivorlNConfig
from distributed_privrl.methods.privorl.method import Parts, PrivorlMethod, plan_rounds
from distributed_privrl.methods.privorl.sampling import RowDrawer, read_chunks
from distributed_privrl.methods.privorl.update import RowSynthesizer
from distributed_privrl.rounds.worker import StoredShard
from distributed_privrl.stages.context import SyntheticTransitions
from distributed_privrl.stages.round_plan import RoundPlan


@dataclass(frozen=True, kw_only=True)
class TransitionRows:
    """Every step of a dataset as a row of its own.

    Args:
        encoder: JSON of the `TransitionEncoder`.
    """

    encoder: str

    def public(self, store: DatasetStore, dataset: str) -> NDArray[np.float32]:
        """Return a public dataset's transitions ``(N, D)``."""
        encoder = TransitionEncoder.from_json(self.encoder)
        chunks = store.iter_transitions(dataset, unit="transition")
        return np.concatenate([encoder.encode(chunk).rows for chunk in chunks])

    def shard(self, ref: ShardRef) -> StoredShard:
        """Return the source of a worker's transitions."""
        return StoredShard(ref=ref, encoder=self.encoder)


def plan_transitions(config: PrivorlConfig) -> RoundPlan:
    """Return what a run would do and cost, from the configuration alone; see `plan_rounds`."""
    return plan_rounds(config, curiosity_rate=config.training.curiosity_rate)


def transitions_method(config: PrivorlNConfig) -> PrivorlMethod:
    """Return PrivORL-n."""
    return PrivorlMethod(config=config, parts_of=partial(_parts, config))


def _parts(config: PrivorlNConfig, _: DatasetStore, encoder: TransitionEncoder) -> Parts:
    drawer = RowDrawer(
        model=config.model,
        config=config.training.sampling,
        row_width=encoder.width,
        rows=config.output.size,
    )

    def decoded(folder: Path) -> Iterator[Transitions]:
        return (encoder.decode(rows) for rows in read_chunks(folder, drawer.count))

    return Parts(
        rows=TransitionRows(encoder=encoder.to_json()),
        synthesizer=RowSynthesizer(model=config.model, row_width=encoder.width),
        drawer=drawer,
        release=lambda folder, _: SyntheticTransitions(chunks=partial(decoded, folder)),
        curiosity_rate=config.training.curiosity_rate,
    )
