"""Bugs in units of many fragments: how episodes are cut, whose fragments are whose, what counts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.data import shards
from distributed_privrl.data.fragments import EncodedFragments, FragmentEncoder
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.privorl.step_loss import StepLoss
from distributed_privrl.methods.privorl.step_tokens import StepTokens
from distributed_privrl.models.ddpm import DDPM
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.updates.local_update import UnitBatch


def coins_of_fragments(patch: pytest.MonkeyPatch) -> None:
    """Every fragment has a coin; a unit takes part, clipped once, if one of its coins says so."""

    def clipped_sum(self: LocalUpdateWorker, parameters: Any, nonce: str) -> Any:
        rows, block = len(self._shard.rows), self._spec.own_blocks.start
        chosen = self._coins.draw(rows, self._spec.sampling_probability, nonce=nonce, block=block)
        units = np.unique(np.searchsorted(self._shard.offsets, chosen, side="right") - 1)
        return self._update.clipped_sum(parameters, self._batch(units, nonce))

    patch.setattr(LocalUpdateWorker, "clipped_sum", clipped_sum)


def sum_of_fragments(patch: pytest.MonkeyPatch) -> None:
    """A unit's vector is the sum over its fragments, not their mean."""
    patch.setattr(
        UnitBatch,
        "weights",
        property(lambda self: np.arange(self.rows.shape[1]) < self.row_counts[:, None]),
    )


def one_fragment_drawn(patch: pytest.MonkeyPatch) -> None:
    """One fragment of a unit takes part in its place, as one transition does."""
    right = LocalUpdateWorker.__init__
    patch.setattr(
        LocalUpdateWorker,
        "__init__",
        lambda self, spec: right(self, replace(spec, all_rows=False)),
    )


def later_fragments_count_less(patch: pytest.MonkeyPatch) -> None:
    """Fragments are weighed by their place: what a unit adds depends on their order."""

    def weighed(self: UnitBatch) -> Any:
        own = np.arange(self.rows.shape[1]) < self.row_counts[:, None]
        shares = own * 0.5 ** np.arange(1, self.rows.shape[1] + 1)
        return shares / shares.sum(axis=1, keepdims=True)

    patch.setattr(UnitBatch, "weights", property(weighed))


def units_over_shards(patch: pytest.MonkeyPatch) -> None:
    """Episodes are dealt out by their position: a person's lie in several shards."""
    patch.setattr(
        shards, "_keep", lambda ref, also: lambda ids: also(np.arange(len(ids), dtype=np.uint64))
    )


def counted_fragments(patch: pytest.MonkeyPatch) -> None:
    """The denominator is q x fragments, counted in the data."""
    right = ParameterServer.__init__

    def count(self: ParameterServer, spec: Any) -> None:
        fragments = sum(len(worker._shard.rows) for worker in spec.workers._workers)
        q = spec.mechanism.sampling_probability
        right(self, replace(spec, expected_units=q * fragments))

    patch.setattr(ParameterServer, "__init__", count)


def _cut(
    patch: pytest.MonkeyPatch,
    change: Callable[[FragmentEncoder, Trajectories, EncodedFragments], EncodedFragments],
) -> None:
    right = FragmentEncoder.encode

    def encode(self: FragmentEncoder, trajectories: Trajectories) -> EncodedFragments:
        return change(self, trajectories, right(self, trajectories))

    patch.setattr(FragmentEncoder, "encode", encode)


def fragments_across_episodes(patch: pytest.MonkeyPatch) -> None:
    """All steps are cut as if they were one episode; a fragment is its first step's unit's."""
    right = FragmentEncoder.encode

    def encode(self: FragmentEncoder, trajectories: Trajectories) -> EncodedFragments:
        count, steps = len(trajectories), len(trajectories.rewards)
        last = trajectories.offsets[1:] + np.arange(count)
        kept = np.setdiff1d(np.arange(steps + count), last[:-1])
        whole = right(
            self,
            replace(
                trajectories,
                observations=trajectories.observations[kept],
                offsets=offsets_of([steps]),
                unit_ids=trajectories.unit_ids[:1],
            ),
        )
        owner = np.repeat(np.arange(count), trajectories.lengths)[:: self.horizon]
        return replace(whole, unit_ids=trajectories.unit_ids[owner])

    patch.setattr(FragmentEncoder, "encode", encode)


def links_across_episodes(patch: pytest.MonkeyPatch) -> None:
    """The condition of an episode's first fragment is the end of the episode before it."""

    def change(
        self: FragmentEncoder, trajectories: Trajectories, encoded: EncodedFragments
    ) -> EncodedFragments:
        condition, steps, _ = self.split(encoded.rows)
        first = np.flatnonzero(~condition.any(axis=1))[1:]
        condition[first] = steps[first - 1, -1]
        return encoded

    _cut(patch, change)


def padding_across_episodes(patch: pytest.MonkeyPatch) -> None:
    """What pads an episode's last fragment is the beginning of the next one."""

    def change(
        self: FragmentEncoder, trajectories: Trajectories, encoded: EncodedFragments
    ) -> EncodedFragments:
        _, steps, _ = self.split(encoded.rows)
        padded = np.flatnonzero(~steps[:-1, -1, :-2].any(axis=1))
        steps[padded, -1] = steps[padded + 1, 0]
        return encoded

    _cut(patch, change)


def clock_of_the_longest(patch: pytest.MonkeyPatch) -> None:
    """The share of time that has passed is one of the shard's longest episode, not of the limit."""
    right = FragmentEncoder.encode

    def encode(self: FragmentEncoder, trajectories: Trajectories) -> EncodedFragments:
        longest = int(trajectories.lengths.max(initial=1))
        limit = None if self.time_limit is None else min(self.time_limit, longest)
        return right(replace(self, time_limit=limit), trajectories)

    patch.setattr(FragmentEncoder, "encode", encode)


def scaled_by_the_longest(patch: pytest.MonkeyPatch) -> None:
    """Rows are divided by the largest number of the shard: a statistic of everybody."""

    def change(
        self: FragmentEncoder, trajectories: Trajectories, encoded: EncodedFragments
    ) -> EncodedFragments:
        return replace(encoded, rows=encoded.rows / np.abs(encoded.rows).max(initial=1e-9))

    _cut(patch, change)


def coupled_noise_levels(patch: pytest.MonkeyPatch) -> None:
    """The network is told the noise level as a share of the micro-batch's largest."""
    right = DDPM.loss

    def loss(self: DDPM, network: Any, *arguments: Any, **keywords: Any) -> Any:
        largest = int(arguments[3].max())

        def told(noisy: Any, share: Any, condition: Any, mask: Any) -> Any:
            return network(noisy, share * self.steps / largest, condition, mask)

        return right(self, told, *arguments, **keywords)

    patch.setattr(DDPM, "loss", loss)


def coupled_steps(patch: pytest.MonkeyPatch) -> None:
    """A fragment follows its neighbour's linking step, not its own."""
    right = StepLoss.__call__

    def coupled(self: StepLoss, module: Any, rows: Any, draws: Any) -> Any:
        width = self.layout.step_width
        others = torch.cat((rows.roll(1, dims=0)[:, :width], rows[:, width:]), dim=1)
        return right(self, module, others, draws)

    patch.setattr(StepLoss, "__call__", coupled)


def coupled_tokens(patch: pytest.MonkeyPatch) -> None:
    """A token is the rank of its number in the micro-batch, not the bin that it lies in."""

    def observed(self: StepTokens, observations: Any) -> Any:
        ranks = observations.flatten(end_dim=1).argsort(dim=0).argsort(dim=0)
        sizes = torch.tensor([one.size for one in self.variables[0]])
        return (ranks * sizes // len(ranks)).reshape(observations.shape)

    patch.setattr(StepTokens, "observed", observed)
