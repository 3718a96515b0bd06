"""PrivORL-n: a release of independent transitions.

Reference: PrivORL, algorithm 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.config import PrivorlNConfig
from distributed_privrl.methods.privorl.method import PrivorlMethod
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.row_model import RowDrawer, RowSynthesizer
from distributed_privrl.methods.privorl.weights import SMALLER_NETWORK, row_weights
from distributed_privrl.stages.context import SyntheticTransitions

if TYPE_CHECKING:
    from distributed_privrl.methods.privorl.release import ChunkDrawer
    from distributed_privrl.rounds.worker import StoredShard


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

    def shard(self, ref: ShardRef) -> "StoredShard":
        """Return the source of a worker's transitions."""
        from distributed_privrl.rounds.worker import StoredShard

        return StoredShard(ref=ref, encoder=self.encoder)


class TransitionsMethod(PrivorlMethod):
    """PrivORL-n; see `PrivorlMethod`."""

    config: PrivorlNConfig
    smaller = SMALLER_NETWORK

    @property
    def uses(self) -> tuple[float, float]:
        """Once by a row; by each drawn one at each noise level."""
        return 1.0, float(self.config.output.size * self.config.training.sampling.steps)

    def weights_of(self, encoder: TransitionEncoder) -> int:
        """Return how many numbers rounds learn; see `PrivorlMethod.weights_of`."""
        return row_weights(self.config.model, encoder.width)

    def parts(self, store: DatasetStore, encoder: TransitionEncoder) -> Parts:
        """Return the diffusion model of rows, and what draws them."""
        drawer = RowDrawer(
            model=self.config.model,
            config=self.config.training.sampling,
            row_width=encoder.width,
            rows=self.config.output.size,
        )
        return Parts(
            rows=TransitionRows(encoder=encoder.to_json()),
            synthesizer=RowSynthesizer(model=self.config.model, row_width=encoder.width),
            drawer=drawer,
            release=partial(released_rows, encoder),
        )


def released_rows(
    encoder: TransitionEncoder, folder: Path, drawer: "ChunkDrawer"
) -> SyntheticTransitions:
    """Return the rows in a folder of chunks, in raw units.

    Args:
        encoder: of the rows.
        folder: of the chunks.
        drawer: that drew them.
    """
    from distributed_privrl.methods.privorl.release import read_chunks

    def decoded() -> Iterator[Transitions]:
        return (encoder.decode(rows) for rows in read_chunks(folder, drawer.count))

    return SyntheticTransitions(chunks=decoded)
