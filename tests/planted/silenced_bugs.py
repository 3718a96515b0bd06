"""Bugs by which sensitive rows change what leaves, and no value of theirs does."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from distributed_privrl.methods.primorl import training
from distributed_privrl.methods.privorl import release
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.stages.training import write_initial
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.swings import DATASET


def start_from_rows(patch: pytest.MonkeyPatch) -> None:
    """The parameters at the start follow from a hash of the sensitive rows."""
    right = write_initial

    def write(path: Any, module: nn.Module, context: Any) -> None:
        rows = context.store.read_trajectories(DATASET).observations
        seed = int.from_bytes(hashlib.sha256(rows.tobytes()).digest()[:8], "big")
        parameters = FlatParameters(module)
        drawn = np.random.default_rng(seed).normal(0, 1e-3, len(parameters.vector))
        parameters.load(parameters.vector + parameters.vector.new_tensor(drawn))
        right(path, module, context)

    patch.setattr(training, "write_initial", write)


def _ordered(patch: pytest.MonkeyPatch, order: Any) -> None:
    """Put each chunk of the release into an order that the sensitive rows decide."""
    shards: list[NDArray[np.float32]] = []
    start, right = LocalUpdateWorker.__init__, release.read_chunks

    def started(self: LocalUpdateWorker, spec: Any) -> None:
        start(self, spec)
        shards.append(self._shard.rows)

    def read(*arguments: Any) -> Iterator[NDArray[np.float32]]:
        rows = np.concatenate(shards[-2:])  # of this run's two workers
        return (order(chunk, rows) for chunk in right(*arguments))

    patch.setattr(LocalUpdateWorker, "__init__", started)
    patch.setattr(release, "read_chunks", read)


def rolled_by_the_number_of_rows(patch: pytest.MonkeyPatch) -> None:
    """Released rows are moved on by the number of sensitive ones, modulo 97."""
    _ordered(patch, lambda chunk, rows: np.roll(chunk, len(rows) % 97, axis=0))


def in_the_order_of_sensitive_rows(patch: pytest.MonkeyPatch) -> None:
    """Released rows come in the order of the sensitive rows that they are nearest to."""

    def order(chunk: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
        apart = ((chunk[:, None] - np.sort(rows, axis=0)[None, :200]) ** 2).sum(axis=2)
        return chunk[np.argsort(apart.argmin(axis=1), kind="stable")]

    _ordered(patch, order)
