"""Bugs in how any run of private rounds is put together: it does not do what it certifies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.privacy.sampling import SlotCoins
from distributed_privrl.rounds import server
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.stages import training
from tests.planted.round_bugs import Plant


def workers_clip_at(factor: float) -> Plant:
    """Workers clip at ``factor`` C, the noise is for C."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = training.WorkerSpec

        def spec(*, local_update: Any, **others: Any) -> Any:
            wider = replace(local_update, clip_norm=factor * local_update.clip_norm)
            return right(local_update=wider, **others)

        patch.setattr(training, "WorkerSpec", spec)

    return plant


def coins_at_twice(patch: pytest.MonkeyPatch) -> None:
    """Coins are thrown at 2 q, q is charged."""
    right = training.WorkerSpec

    def spec(*, sampling_probability: float, **others: Any) -> Any:
        return right(sampling_probability=min(1.0, 2 * sampling_probability), **others)

    patch.setattr(training, "WorkerSpec", spec)


def coins_fall_twice_as_often(patch: pytest.MonkeyPatch) -> None:
    """Workers are told q, and their coins fall at 2 q."""
    right = SlotCoins.draw
    patch.setattr(
        SlotCoins,
        "draw",
        lambda self, slots, q, **names: right(self, slots, min(1.0, 2 * q), **names),
    )


def trajectories_are_units(patch: pytest.MonkeyPatch) -> None:
    """Units are trajectories, whatever ``data.unit`` says."""
    right = training.shard_refs

    def refs(*arguments: Any, **keywords: Any) -> Any:
        return [replace(ref, unit="trajectory") for ref in right(*arguments, **keywords)]

    patch.setattr(training, "shard_refs", refs)


def _shards(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    right = training.shard_refs
    patch.setattr(training, "shard_refs", lambda *a, **k: right(*a, **{**k, **changes}))


def no_cap_on_a_unit(patch: pytest.MonkeyPatch) -> None:
    """``data.max_length`` is forgotten."""
    _shards(patch, max_rows_per_unit=None)


def charged_trajectories_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Rounds read all trajectories of a unit, those of another charge too."""
    _shards(patch, skip_trajectories=0)


def shards_overlap(patch: pytest.MonkeyPatch) -> None:
    """Every worker reads the whole dataset, so that a unit takes part once for each of them."""
    right = training.WorkerSpec

    def spec(**settings: Any) -> Any:
        return right(**{**settings, "index": 0, "workers": 1})

    patch.setattr(training, "WorkerSpec", spec)


def a_unit_twice(patch: pytest.MonkeyPatch) -> None:
    """The first unit of each batch is in it twice."""
    right = LocalUpdateWorker._batch
    patch.setattr(
        LocalUpdateWorker,
        "_batch",
        lambda self, included, nonce, blocks: right(
            self, np.r_[included[:1], included], nonce, (min(1, len(included)), *blocks)
        ),
    )


def uncharged_round(patch: pytest.MonkeyPatch) -> None:
    """After the last block a round is run that nobody has reserved."""
    right = ParameterServer._close_block

    def one_more(self: ParameterServer) -> None:
        right(self)
        if self._round == self._target:
            self._run_round()
            self._block_left = 0

    patch.setattr(ParameterServer, "_close_block", one_more)


def half_the_denominator(patch: pytest.MonkeyPatch) -> None:
    """The server divides by half of what it was told."""
    right = server.as_gradient
    patch.setattr(server, "as_gradient", lambda total, units, **k: right(total, units / 2, **k))
