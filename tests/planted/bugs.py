"""Bugs to plant into the package, each a function of pytest's ``monkeypatch``."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data import shards
from distributed_privrl.data.trajectories import offsets_of
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.noise_kernel import DrawnAhead
from distributed_privrl.privacy.sampling import SecurePoissonSampler
from distributed_privrl.rounds import book_keeping, gradient, server
from distributed_privrl.rounds.book_keeping import BookKeeping
from distributed_privrl.rounds.gradient import GradientLocalUpdate, OpacusGradients
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_scale(factor: float) -> Plant:
    """The noise's standard deviation is not the one that is charged."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = PrivateRound.standard_deviation
        patch.setattr(
            PrivateRound, "standard_deviation", lambda self, size: factor * right(self, size)
        )

    return plant


def wrong_clip_norm(factor: float) -> Plant:
    """Units are clipped to another norm than the mechanism's."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = GradientLocalUpdate.__post_init__

        def changed(self: GradientLocalUpdate) -> None:
            if self.clip_norm is not None:
                self.clip_norm *= factor
            right(self)

        patch.setattr(GradientLocalUpdate, "__post_init__", changed)

    return plant


def noise_twice(patch: pytest.MonkeyPatch) -> None:
    right = PrivateRound.add_noise

    def twice(self: PrivateRound, total: Any, source: Any, **keywords: Any) -> Any:
        return right(self, right(self, total, source, **keywords), source, **keywords)

    patch.setattr(PrivateRound, "add_noise", twice)


def noise_per_worker(patch: pytest.MonkeyPatch) -> None:
    """Every worker adds the round's noise, and the server none: right for one worker alone."""
    deviations: list[float] = []
    start, right = ParameterServer.__init__, LocalUpdateWorker.clipped_sum

    def remember(self: ParameterServer, spec: Any) -> None:
        deviations[:] = [spec.mechanism.noise_multiplier * spec.mechanism.clip_norm]
        start(self, spec)

    def noisy(self: LocalUpdateWorker, **keywords: Any) -> Any:
        total = right(self, **keywords)
        return total + np.random.default_rng().normal(0, deviations[0], total.shape)

    patch.setattr(ParameterServer, "__init__", remember)
    patch.setattr(LocalUpdateWorker, "clipped_sum", noisy)
    patch.setattr(PrivateRound, "add_noise", lambda self, total, source, **_: total)


def seeded_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "urandom", lambda count: bytes(count))


def same_coins_on_all_workers(patch: pytest.MonkeyPatch) -> None:
    """Workers of one run share a key, as copies of one process would."""
    seed = int.from_bytes(os.urandom(8), "big")
    right = SecurePoissonSampler.__init__

    def start(self: SecurePoissonSampler) -> None:
        right(self)
        self._generator = np.random.default_rng(seed)

    patch.setattr(SecurePoissonSampler, "__init__", start)


def noise_used_again(patch: pytest.MonkeyPatch) -> None:
    """The vector that was prepared is not replaced."""
    first = DrawnAhead._prepare
    prepared: set[int] = set()

    def once(self: DrawnAhead) -> Any:
        if id(self) not in prepared:
            prepared.add(id(self))
            future = first(self)
            future.result()
            self._kept = self._normals.copy()  # type: ignore[attr-defined]
            return future
        return self._thread.submit(np.copyto, self._normals, self._kept)  # type: ignore[attr-defined]

    patch.setattr(DrawnAhead, "_prepare", once)


def _with_sampler(patch: pytest.MonkeyPatch, draw: Callable[..., Any]) -> None:
    patch.setattr(SecurePoissonSampler, "draw", draw)


def fixed_batches(patch: pytest.MonkeyPatch) -> None:
    def draw(self: SecurePoissonSampler, ids: Any, q: float, round_index: int) -> Any:
        return np.sort(self._generator.choice(len(ids), round(q * len(ids)), replace=False))

    _with_sampler(patch, draw)


def shuffled_epochs(patch: pytest.MonkeyPatch) -> None:
    """Every unit once an epoch, in an order that is shuffled anew."""
    orders: dict[int, list[Any]] = {}

    def draw(self: SecurePoissonSampler, ids: Any, q: float, round_index: int) -> Any:
        left = orders.setdefault(id(self), [])
        if not left:
            order = self._generator.permutation(len(ids))
            left.extend(np.array_split(order, round(1 / q)))
        return np.sort(left.pop())

    _with_sampler(patch, draw)


def repeated_batches(patch: pytest.MonkeyPatch) -> None:
    """One coin a unit for two rounds."""
    kept: dict[int, Any] = {}
    right = SecurePoissonSampler.draw

    def draw(self: SecurePoissonSampler, ids: Any, q: float, round_index: int) -> Any:
        if round_index % 2 == 0:
            kept[id(self)] = right(self, ids, q, round_index)
        return kept[id(self)]

    _with_sampler(patch, draw)


def wrong_sampling_probability(patch: pytest.MonkeyPatch) -> None:
    right = SecurePoissonSampler.draw
    _with_sampler(patch, lambda self, ids, q, number: right(self, ids, min(1.0, 1.2 * q), number))


def units_drawn_with_replacement(patch: pytest.MonkeyPatch) -> None:
    def draw(self: SecurePoissonSampler, ids: Any, q: float, round_index: int) -> Any:
        return np.sort(self._generator.integers(len(ids), size=round(q * len(ids))))

    _with_sampler(patch, draw)


def unreserved_block(patch: pytest.MonkeyPatch) -> None:
    def reserve(self: ParameterServer) -> None:
        self._nonce, self._block_left, self._block_drawn = "none", 5, 0

    patch.setattr(ParameterServer, "_reserve_block", reserve)


def reserved_too_late(patch: pytest.MonkeyPatch) -> None:
    """A block is reserved after its first draw: a crash in between would not be charged."""
    reserve, run = ParameterServer._reserve_block, ParameterServer._run_round

    def run_first(self: ParameterServer) -> None:
        run(self)
        if self._block_drawn == 1 and self._block_left == 0:
            reserve(self)
            self._block_left, self._block_drawn = self._block_left - 1, 1

    def later(self: ParameterServer) -> None:
        self._block_left, self._block_drawn = 1, 0

    patch.setattr(ParameterServer, "_reserve_block", later)
    patch.setattr(ParameterServer, "_run_round", run_first)


def uncharged_draw(patch: pytest.MonkeyPatch) -> None:
    """A peek: the first sum is released once more, beside the rounds."""
    right = ParameterServer._close_block

    def peek(self: ParameterServer) -> None:
        right(self)
        assert self._spec.mechanism is not None
        assert self._noise is not None
        self._spec.mechanism.add_noise(np.zeros(4), self._noise, round_index=self._round)

    patch.setattr(ParameterServer, "_close_block", peek)


def lost_block_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A resumed run gives the rounds of its open block back and reserves nothing for them."""
    from distributed_privrl.privacy.ledger import Ledger

    known: dict[str, int] = {}
    right = Ledger.reserve_rounds

    def reserve(self: Ledger, run_id: str, *, rounds: int, nonce: str) -> Any:
        place = nonce.rsplit("/", 1)[0]
        number = known.setdefault(f"{self._url}/{place}", rounds)
        return right(self, run_id, rounds=number, nonce=place)

    patch.setattr(Ledger, "reserve_rounds", reserve)
    patch.setattr(Ledger, "abandon_uncommitted", lambda self, run_id: 0)
    commit = Ledger.commit_rounds
    patch.setattr(
        Ledger,
        "commit_rounds",
        lambda self, nonce, *, drawn: commit(self, nonce.rsplit("/", 1)[0], drawn=drawn),
    )


def bad_units_kept(patch: pytest.MonkeyPatch) -> None:
    """A vector that is not finite is scaled like any other."""
    everything = torch.ones((), dtype=torch.bool)

    class Blind:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def isfinite(self, values: torch.Tensor) -> torch.Tensor:
            return everything.expand(values.shape)

    for module in (book_keeping, gradient):
        patch.setattr(module, "torch", Blind())


def bad_units_raise(patch: pytest.MonkeyPatch) -> None:
    right = book_keeping._unit_norms

    def checked(*arguments: Any) -> Any:
        norms = right(*arguments)
        if not bool(torch.isfinite(norms).all()):
            raise ConfigError("a gradient is not finite")
        return norms

    patch.setattr(book_keeping, "_unit_norms", checked)


def bad_units_drop_the_batch(patch: pytest.MonkeyPatch) -> None:
    """One bad unit makes the whole micro-batch null."""
    bad_units_kept(patch)
    for path in (BookKeeping, OpacusGradients):
        right = path.add_clipped_gradients

        def safe(self: Any, losses: Any, *, accumulator: Any, right: Any = right, **k: Any) -> None:
            own = torch.zeros_like(accumulator)
            right(self, losses, accumulator=own, **k)
            if bool(torch.isfinite(own).all()):
                accumulator.add_(own)

        patch.setattr(path, "add_clipped_gradients", safe)


def bad_units_are_logged(patch: pytest.MonkeyPatch) -> None:
    import logging

    right = book_keeping._unit_norms

    def watched(*arguments: Any) -> Any:
        norms = right(*arguments)
        if not bool(torch.isfinite(norms).all()):
            logging.getLogger("distributed_privrl").warning("skipped a gradient")
        return norms

    patch.setattr(book_keeping, "_unit_norms", watched)


def bad_units_end_the_block(patch: pytest.MonkeyPatch) -> None:
    """A step with a bad sum is left out, so that the round number tells of it."""
    bad_units_kept(patch)
    right = ParameterServer._run_round

    def run(self: ParameterServer) -> None:
        before = self._optimiser.vector.clone()
        right(self)
        if not bool(torch.isfinite(self._optimiser.vector).all()):
            self._optimiser.vector.copy_(before)
            self._round -= 1

    patch.setattr(ParameterServer, "_run_round", run)
    patch.setattr(ParameterServer, "_reachable_target", lambda self: self._spec.rounds)


def clip_each_layer(patch: pytest.MonkeyPatch) -> None:
    """Every layer is clipped to C, so that a unit has norm sqrt(L) C."""
    whole = book_keeping._clip

    def each(layers: Any, **keywords: Any) -> Any:
        return [clipped for layer in layers for clipped in whole([layer], **keywords)]

    patch.setattr(book_keeping, "_clip", each)


def clip_each_copy(patch: pytest.MonkeyPatch) -> None:
    """Every copy of a unit is clipped and added, so that a unit has norm copies x C."""
    right = BookKeeping.add_clipped_gradients

    def each(self: BookKeeping, losses: Any, *, copies: int, **keywords: Any) -> None:
        right(self, losses, copies=1, **keywords)

    patch.setattr(BookKeeping, "add_clipped_gradients", each)


def clip_the_sum(patch: pytest.MonkeyPatch) -> None:
    """The sum is clipped, not each unit: one unit can turn it round, by 2 C."""
    right = GradientLocalUpdate.clipped_sum

    def clipped(self: GradientLocalUpdate, parameters: Any, batch: Any) -> Any:
        assert self.clip_norm is not None
        bound, self.clip_norm = self.clip_norm, None
        total = right(self, parameters, batch)
        self.clip_norm = bound
        norm = np.linalg.norm(total.astype(np.float64))
        return total * (min(1.0, len(batch) * bound / norm) if norm else 1.0)

    patch.setattr(GradientLocalUpdate, "clipped_sum", clipped)


def huge_units_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Scaling by 1 / norm^2: safe, and useless."""
    right = gradient.clip_rows

    def squared(vectors: torch.Tensor, clip_norm: float | None) -> torch.Tensor:
        return right(right(vectors, clip_norm) * 0.5, clip_norm)

    patch.setattr(gradient, "clip_rows", squared)


def float32_norms(patch: pytest.MonkeyPatch) -> None:
    def clip(vectors: torch.Tensor, clip_norm: float | None) -> torch.Tensor:
        assert clip_norm is not None
        norms = vectors.norm(dim=1, keepdim=True)
        return vectors * torch.clamp(clip_norm / norms, max=1.0)

    patch.setattr(gradient, "clip_rows", clip)


def float32_row_kernels(patch: pytest.MonkeyPatch) -> None:
    def norms(rows: torch.Tensor) -> torch.Tensor:
        return rows.norm(dim=1).square().double()

    def scale(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        rows.mul_(factors[:, None])
        return norms(rows)

    patch.setattr(book_keeping, "squared_norms", norms)
    patch.setattr(book_keeping, "scale_rows_", scale)


def rows_are_units(patch: pytest.MonkeyPatch) -> None:
    """A unit with many rows takes part once for each of them."""

    def group(row_units: Any, cap: int | None) -> Any:
        order = np.argsort(row_units, kind="stable")
        return order, np.arange(len(order), dtype=np.uint64), np.ones(len(order), np.int64)

    patch.setattr(shards, "_group", group)


def trajectories_are_units(patch: pytest.MonkeyPatch) -> None:
    """A unit whose rows do not lie together counts once for each run of them."""

    def group(row_units: Any, cap: int | None) -> Any:
        starts = np.flatnonzero(np.r_[True, row_units[1:] != row_units[:-1]])
        lengths = np.diff(np.r_[starts, len(row_units)])
        return np.arange(len(row_units)), row_units[starts], lengths

    patch.setattr(shards, "_group", group)
    patch.setattr(shards, "offsets_of", offsets_of)


def realised_denominator(patch: pytest.MonkeyPatch) -> None:
    """The worker returns the mean of its batch, scaled as if it were of the expected size."""
    right = LocalUpdateWorker._batch
    sizes: dict[int, tuple[float, int]] = {}

    def batch(self: LocalUpdateWorker, included: Any, round_index: int) -> Any:
        units = right(self, included, round_index)
        expected = self._spec.sampling_probability * len(self._shard.unit_ids)
        sizes[id(self._update)] = (expected, len(units))
        return units

    whole = GradientLocalUpdate.clipped_sum

    def mean(self: GradientLocalUpdate, parameters: Any, units: Any) -> Any:
        expected, size = sizes[id(self)]
        return whole(self, parameters, units) * (expected / max(size, 1))

    patch.setattr(LocalUpdateWorker, "_batch", batch)
    patch.setattr(GradientLocalUpdate, "clipped_sum", mean)


def server_divides_by_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The server divides by what it can guess of the realised batch."""
    right = server.as_gradient
    patch.setattr(
        server,
        "as_gradient",
        lambda values, denominator, **keywords: right(
            values, denominator * max(abs(values[0]), 0.1) / 45, **keywords
        ),
    )


def counted_denominator(patch: pytest.MonkeyPatch) -> None:
    """The number of units is read from the data."""
    right = ParameterServer.__init__

    def count(self: ParameterServer, spec: Any) -> None:
        units = sum(len(worker._shard.unit_ids) for worker in spec.workers._workers)
        q = spec.mechanism.sampling_probability
        right(self, replace(spec, expected_units=q * units))

    patch.setattr(ParameterServer, "__init__", count)


def empty_rounds_left_out(patch: pytest.MonkeyPatch) -> None:
    right = PrivateRound.add_noise

    def skip(self: PrivateRound, total: Any, source: Any, **keywords: Any) -> Any:
        return right(self, total, source, **keywords) if np.any(total) else total

    patch.setattr(PrivateRound, "add_noise", skip)


def laplace_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise of the right variance and another shape."""

    def draw(
        self: SecureNoise, tag: int, values: Any, out: Any, factor: float, granularity: float
    ) -> None:
        scale = factor * granularity / np.sqrt(2)
        out[:] = values + np.random.default_rng().laplace(0, scale, len(values))

    patch.setattr(SecureNoise, "_add_normals", draw)
