"""Bugs in what a round releases: noise, coins, charges and the denominator."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger, entry_secrets
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.noise_kernel import DrawnAhead, KeyedStream
from distributed_privrl.privacy.sampling import SlotCoins, UnitRandomness
from distributed_privrl.rounds import server
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.gradient import GradientLocalUpdate

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_scale(factor: float) -> Plant:
    """The noise's standard deviation is not the one that is charged."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = PrivateRound.standard_deviation
        patch.setattr(
            PrivateRound, "standard_deviation", lambda self, size: factor * right(self, size)
        )

    return plant


def wrong_event(**factors: float) -> Plant:
    """The event that is charged is not what is drawn."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = PrivateRound.event

        def event(self: PrivateRound, rounds: int) -> Any:
            true = right(self, rounds)
            wrong = {name: factor * getattr(true, name) for name, factor in factors.items()}
            return true.model_copy(update=wrong)

        patch.setattr(PrivateRound, "event", event)

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


def few_keys_of_noise(patch: pytest.MonkeyPatch) -> None:
    """Keys of noise have 16 random bits: no draw looks wrong, and all can be tried."""
    right = KeyedStream.__init__
    patch.setattr(
        KeyedStream, "__init__", lambda self, key: right(self, hashlib.sha256(key[:2]).digest())
    )


def few_keys_of_coins(patch: pytest.MonkeyPatch) -> None:
    """The secrets of reservations have 16 random bits."""
    right = entry_secrets.new_secret
    patch.setattr(entry_secrets, "new_secret", lambda: hashlib.sha256(right()[:2]).digest())


def same_coins_on_all_workers(patch: pytest.MonkeyPatch) -> None:
    """The coins of all blocks are those of the first."""
    right = SlotCoins.draw

    def draw(self: SlotCoins, slots: int, q: float, *, nonce: str, block: int) -> Any:
        return right(self, slots, q, nonce=nonce, block=0)

    _with_coins(patch, draw)


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


def mirrored_noise(patch: pytest.MonkeyPatch) -> None:
    """The second half of the coordinates gets the noise of the first, negated."""
    right = SecureNoise._add_normals

    def add(
        self: SecureNoise, tag: int, values: Any, out: Any, factor: float, granularity: float
    ) -> None:
        steps = np.rint(np.array(values, np.float64) / granularity)
        right(self, tag, np.zeros(len(values)), out, factor, granularity)
        half = len(out) // 2
        out[half : 2 * half] = -out[:half]
        out += steps * granularity

    patch.setattr(SecureNoise, "_add_normals", add)


def _with_coins(patch: pytest.MonkeyPatch, draw: Callable[..., Any]) -> None:
    patch.setattr(SlotCoins, "draw", draw)


def fixed_batches(patch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng()

    def draw(self: SlotCoins, slots: int, q: float, **_: Any) -> Any:
        size = int(q * slots + generator.random())  # q of the slots on average
        return np.sort(generator.choice(slots, size, replace=False))

    _with_coins(patch, draw)


def shuffled_epochs(patch: pytest.MonkeyPatch) -> None:
    """Every unit once an epoch, in an order that is shuffled anew."""
    orders: dict[tuple[int, int], list[Any]] = {}
    generator = np.random.default_rng()

    def draw(self: SlotCoins, slots: int, q: float, *, nonce: str, block: int) -> Any:
        left = orders.setdefault((id(self), block), [])
        if not left:
            left.extend(np.array_split(generator.permutation(slots), round(1 / q)))
        return np.sort(left.pop())

    _with_coins(patch, draw)


def repeated_batches(patch: pytest.MonkeyPatch) -> None:
    """One coin a unit for two rounds."""
    kept: dict[tuple[int, int], Any] = {}
    right = SlotCoins.draw

    def draw(self: SlotCoins, slots: int, q: float, *, nonce: str, block: int) -> Any:
        place = id(self), block
        if place not in kept:
            kept[place] = right(self, slots, q, nonce=nonce, block=block)
            return kept[place]
        return kept.pop(place)

    _with_coins(patch, draw)


def wrong_sampling_probability(patch: pytest.MonkeyPatch) -> None:
    right = SlotCoins.draw
    _with_coins(
        patch, lambda self, slots, q, **names: right(self, slots, min(1.0, 1.2 * q), **names)
    )


def units_drawn_with_replacement(patch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng()

    def draw(self: SlotCoins, slots: int, q: float, **_: Any) -> Any:
        return np.sort(generator.integers(slots, size=round(q * slots)))

    _with_coins(patch, draw)


def float32_sums(patch: pytest.MonkeyPatch) -> None:
    """Vectors are added up in float32, whatever their number."""

    def add(self: ExactSum, place: slice, operands: Any, **_: Any) -> None:
        total = self.total[place].float()
        for gradients, inputs in operands:
            total += torch.mm(gradients.t(), inputs).view(-1)
        self.total[place] = total.double()

    patch.setattr(ExactSum, "add_products", add)


def coins_by_the_round(patch: pytest.MonkeyPatch) -> None:
    """Coins follow from the round's number: a rebuilt server draws new noise for old ones."""
    patch.setattr(ParameterServer, "_draw_nonce", property(lambda self: str(self._round)))


def fresh_coins(patch: pytest.MonkeyPatch) -> None:
    """A worker that is asked again tosses its coins again."""
    generator = np.random.default_rng()

    def draw(self: SlotCoins, slots: int, q: float, **_: Any) -> Any:
        return np.flatnonzero(generator.random(slots) < q)

    _with_coins(patch, draw)


def fresh_draws(patch: pytest.MonkeyPatch) -> None:
    """A worker that is asked again draws a unit's own randomness again."""
    right = UnitRandomness.normals

    def normals(self: UnitRandomness, units: Any, nonce: str, *others: Any, **more: Any) -> Any:
        return right(self, units, f"{nonce}/{os.urandom(4).hex()}", *others, **more)

    patch.setattr(UnitRandomness, "normals", normals)


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
        lambda self, nonce, *, drawn, run_id: commit(
            self, nonce.rsplit("/", 1)[0], drawn=drawn, run_id=run_id
        ),
    )


def realised_denominator(patch: pytest.MonkeyPatch) -> None:
    """The worker returns the mean of its batch, scaled as if it were of the expected size."""
    right = LocalUpdateWorker._batch
    sizes: dict[int, tuple[float, int]] = {}

    def batch(self: LocalUpdateWorker, included: Any, nonce: str, blocks: Any) -> Any:
        units = right(self, included, nonce, blocks)
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
