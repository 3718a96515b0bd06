"""Sums move by one unit's vector and by what is paid for: rows built so that floats round worst."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.shards import EncodedShard
from distributed_privrl.privacy.calibration import SUM_SLACK, PrivateRound
from distributed_privrl.privacy.noise import lattice_granularity, most_exact_units
from distributed_privrl.privacy.sampling import EMPTY
from distributed_privrl.rounds.worker import LocalUpdateWorker, SecretOfRun, WorkerSpec
from distributed_privrl.updates import book_keeping, exact_sums
from distributed_privrl.updates.book_keeping import CANCELLATION_LIMIT
from distributed_privrl.updates.exact_sums import ExactSum, float32_slack, most_units
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch, equal_parts
from tests.updates.rounding import built_to_round_badly
from tests.worlds.toy import ToyUpdate, batch, initial_parameters

Operands = list[tuple[Tensor, Tensor]]
CLIP_NORM = 1.0
PAID = PrivateRound(clip_norm=CLIP_NORM, noise_multiplier=1.0, sampling_probability=1.0)


@dataclass(frozen=True)
class OneWeight:
    """The gradient of row (x,) is x."""

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        return module(rows)[:, 0]


def one_weight(micro_batch_rows: int) -> GradientLocalUpdate:
    return GradientLocalUpdate(
        module=nn.Linear(1, 1, bias=False),
        row_loss=OneWeight(),
        clip_norm=CLIP_NORM,
        micro_batch_rows=micro_batch_rows,
    )


@dataclass(frozen=True)
class Summed:
    """The gradient of row x is x for each output, times a hundredth."""

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        return module(rows).sum(dim=1) * 1e-2


@dataclass(frozen=True)
class OneWeightUpdate:
    """Factory of the update."""

    micro_batch_rows: int
    draw_count: int = 0

    def __call__(self) -> GradientLocalUpdate:
        return one_weight(self.micro_batch_rows)


def units_of(values: NDArray[np.float64], each: int = 1) -> UnitBatch:
    rows = values.astype(np.float32).reshape(-1, each, 1)
    return UnitBatch(
        rows=rows, valid=np.ones(rows.shape[:2], bool), draws=np.zeros((*rows.shape[:2], 0))
    )


def moved(update: GradientLocalUpdate, units: UnitBatch, unit: int) -> float:
    """Return how far the sum moves if ``unit`` becomes null, in clip norms."""
    start = np.zeros(1, np.float32)
    whole = update.clipped_sum(start, units).copy()
    valid = units.valid.copy()
    valid[unit] = False
    return float(np.linalg.norm(whole - update.clipped_sum(start, replace(units, valid=valid))))


@pytest.mark.parametrize(
    ("count", "micro_batch_rows"),
    [
        (count, size)
        for count in (256, 1024, 4096)
        for size in (1, 7, 256, 1024)
        if count // size < 4096  # so many micro-batches take seconds and are added like fewer
    ],
)
def test_a_null_unit_moves_the_sum_by_what_is_paid_for(count: int, micro_batch_rows: int) -> None:
    update, units = one_weight(micro_batch_rows), units_of(built_to_round_badly(count))
    assert 0.99 < moved(update, units, 0) <= PAID.sensitivity(1)


def test_such_rows_round_badly_in_a_float32_sum() -> None:
    """What they were built for: a running float32 sum moves by 1.5 % more than the unit."""
    values = built_to_round_badly(1024)
    sums = [np.cumsum(some, dtype=np.float32)[-1] for some in (values, values * (values < 1))]
    assert float(sums[0]) - float(sums[1]) > 1.01


@pytest.mark.parametrize(("count", "micro_batch_rows"), [(1025, 1), (4097, 256)])
def test_a_removed_unit_leaves_a_slot_and_moves_the_sum_by_what_is_paid_for(
    count: int, micro_batch_rows: int
) -> None:
    """The order is the attacker's, and one unit is gone: an empty slot is in its place."""
    values = built_to_round_badly(count)
    spec = WorkerSpec(
        source=lambda keep=None: EncodedShard(
            rows=values[:, None],
            valid=np.ones(count, bool),
            unit_ids=np.arange(count, dtype=np.uint64),
            offsets=np.arange(count + 1),
        ),
        local_update=OneWeightUpdate(micro_batch_rows),
        sampling_probability=1.0,
        secret=SecretOfRun(run_id="run", insecure_key=1),
        least_slots=count + 900,
    )
    worker = LocalUpdateWorker(spec)
    start = np.zeros(1, np.float32)
    in_order = np.concatenate([np.arange(count), np.full(900, EMPTY)])
    worker._slots = {0: in_order}
    whole = worker.clipped_sum(start, "1").copy()
    worker._slots = {0: np.where(in_order == 0, EMPTY, in_order)}
    assert 0.99 < np.abs(whole - worker.clipped_sum(start, "1")).max() <= PAID.sensitivity(1)


@pytest.mark.parametrize("each", [2, 5, 16])
def test_rows_that_cancel_move_it_by_no_more(each: int) -> None:
    """A unit's addends of 1,000 C that cancel: their rounding would be as large as C."""
    pattern = np.resize([1000.0, -1000.0 + 0.37], each)
    pattern[-1] += 1.0
    units = units_of(np.tile(pattern, 256), each)
    update = one_weight(10**6)
    for unit in (0, 100, 255):
        assert moved(update, units, unit) <= PAID.sensitivity(1)
    alone = update.clipped_sum(np.zeros(1, np.float32), units.part(0, 1))
    assert np.abs(alone).max() <= 1.0 + 2.0**-20


def test_addends_of_a_unit_add_up_to_what_the_slack_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on a unit's addends that `float32_slack` relies on holds for what is summed."""
    ratios: list[float] = []
    right = ExactSum.add_products

    def watch(self: ExactSum, place: slice, operands: Operands, **bounds: Any) -> None:
        ((gradients, inputs),) = operands
        norms = (gradients.double().norm(dim=1) * inputs.double().norm(dim=1)).view(-1, 3)
        ratios.extend((norms.sum(dim=1) / CLIP_NORM).tolist())
        right(self, place, operands, **bounds)

    monkeypatch.setattr(ExactSum, "add_products", watch)
    monkeypatch.setattr("distributed_privrl.updates.layer_calls._FORMING_COST", 1e9)
    update = ToyUpdate(dtype=torch.float32, clip_norm=CLIP_NORM)()
    units = batch(40, 3, scale=1e3)
    opposite = replace(units, rows=units.rows * np.array([1.0, -1.0, 1e-4], np.float32)[:, None])
    for some in (units, opposite):
        update.clipped_sum(initial_parameters(torch.float32), some)
    assert 0.5 < max(ratios) <= CANCELLATION_LIMIT


def test_the_bound_is_the_one_that_is_paid_for() -> None:
    for addends in (1, 2, 4, 16):
        ratio = 1.0 if addends == 1 else CANCELLATION_LIMIT
        units = most_units(addends, ratio)
        assert float32_slack(units, addends, ratio) <= SUM_SLACK
        assert float32_slack(units + 1, addends, ratio) > SUM_SLACK
    assert most_units(1, 1.0) >= 256
    assert math.isinf(float32_slack(2**12, 2**12, 1.0))


@pytest.mark.parametrize("copies", [1, 4])
def test_no_float32_sum_holds_more_units_than_are_paid_for(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    product, rounded = torch.mm, exact_sums.add_rounded_

    def watch(one: Tensor, other: Tensor, **where: Tensor) -> Tensor:
        sizes.append(one.shape[1])
        return product(one, other, **where)

    monkeypatch.setattr("distributed_privrl.updates.layer_calls._FORMING_COST", 1e9)
    update = ToyUpdate(dtype=torch.float32, micro_batch_rows=10**6)()
    parameters, units = initial_parameters(torch.float32), batch(2000, copies)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "mm", watch)
        update.clipped_sum(parameters, units)
    ratio = 1.0 if copies == 1 else CANCELLATION_LIMIT
    assert max(sizes) <= copies * most_units(copies, ratio) < 2000 * copies
    vectors: list[int] = []

    def count(total: Tensor, values: Tensor, *others: float, **begin: bool) -> None:
        vectors.append(len(values))
        rounded(total, values, *others, **begin)

    monkeypatch.setattr(exact_sums, "add_rounded_", count)
    update.clipped_sum(parameters, units)
    assert len(vectors) == len(update._flat.slices) * len(sizes) // _products(update)


def _products(update: GradientLocalUpdate) -> int:
    """Return how many weights the module has."""
    return sum(name.endswith("weight") for name in update._flat.slices)


def test_more_addends_than_are_paid_for_are_refused() -> None:
    total = ExactSum(1, 1.0, like=torch.zeros(0))
    with pytest.raises(UnsafeError, match="paid for"):
        total.add_sum(slice(0, 1), torch.ones(2**17, 1), addends=2**17)


def test_sums_are_multiples_of_the_lattice_in_any_order() -> None:
    update = ToyUpdate(dtype=torch.float32)()
    parameters, units = initial_parameters(torch.float32), batch(300)
    whole = update.clipped_sum(parameters, units).copy()
    granularity = lattice_granularity(1.0, update.dimension)
    assert (np.rint(whole / granularity) * granularity == whole).all()
    blocks = replace(units, blocks=(120, 0, 180))
    together = update.clipped_sum(parameters, blocks).copy()
    parts = [
        update.clipped_sum(parameters, units.part(*ends)).copy() for ends in ((0, 120), (120, 300))
    ]
    np.testing.assert_array_equal(parts[0] + parts[1], together)
    np.testing.assert_array_equal(parts[1] + parts[0], together)


def test_a_unit_that_is_clipped_changes_no_bit_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clipping again, after rounding, is for those who need it alone."""
    update = ToyUpdate(dtype=torch.float32)()
    parameters = initial_parameters(torch.float32)
    generator = np.random.default_rng(3)
    seen: list[Tensor] = []
    right = ExactSum.add_products

    def watch(self: ExactSum, place: slice, operands: Operands, **bounds: Any) -> None:
        ((gradients, inputs),) = operands
        kept = np.delete(np.arange(len(gradients)), 7)
        seen.extend((gradients[kept].reshape(-1), inputs[kept].reshape(-1)))
        right(self, place, operands, **bounds)

    monkeypatch.setattr(ExactSum, "add_products", watch)
    addends = []
    for scale in (1e-3, 1.0, 30.0, 1e20, 5e37, math.nan):
        units = batch(24, seed=2, scale=30.0)
        units.rows[7] = generator.normal(size=units.rows[7].shape) * scale
        seen.clear()
        update.clipped_sum(parameters, units)
        addends.append(torch.cat(seen).numpy())
    for other in addends[1:]:
        np.testing.assert_array_equal(other, addends[0])


@pytest.fixture
def low_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("low_precision")
def test_less_than_full_float32_is_refused() -> None:
    with pytest.raises(UnsafeError, match="float32_matmul_precision"):
        ToyUpdate()().clipped_sum(initial_parameters(), batch(3))


def test_more_units_than_exact_sums_hold_are_refused() -> None:
    total = ExactSum(4, 1.0, like=torch.zeros(0))
    with pytest.raises(UnsafeError, match="lower training"):
        total.count(2**52)


def test_workers_together_add_no_more_than_exact_sums_hold() -> None:
    most = most_exact_units(1.0, 4)
    total = ExactSum(4, 1.0, like=torch.zeros(0))
    total.clear(0.25)  # of a worker that has a quarter of the blocks
    total.count(most // 4)
    with pytest.raises(UnsafeError, match=f"hold {most // 4} of it and {most} in all"):
        total.count(1)


def test_the_largest_sum_has_no_rounding_and_twice_as_many_have() -> None:
    step = lattice_granularity(1.0, 4)
    largest = most_exact_units(1.0, 4) * (1.0 + step)
    assert largest / step <= 2.0**52
    for steps, exact in ((1.0, True), (4.0, False)):
        total = steps * 2.0**52 * step
        assert (total + step - total == step) == exact


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_nothing_of_an_earlier_sum_is_left(clip_norm: float | None) -> None:
    """A new sum overwrites the places that it begins, and the others are zero."""
    total = ExactSum(6, clip_norm, like=torch.zeros(0))

    def fill() -> None:
        total.clear()
        total.add_rows(slice(None), torch.full((2, 6), 0.25))
        assert total.total.tolist() == [0.5] * 6

    fill()
    total.clear()
    assert total.total.tolist() == [0] * 6
    fill()
    total.clear()
    for _ in range(2):
        total.add_products(slice(1, 3), [(torch.full((1, 1), 0.5), torch.full((1, 2), 0.5))])
        total.add_sum(slice(5, 6), torch.full((1, 1), 0.25))
    assert total.total.tolist() == [0, 0.5, 0.5, 0, 0, 0.5]
    fill()
    total.clear()
    total.add_sum(slice(0, 2), torch.full((1, 2), 0.25))
    total.add_sum(slice(0, 4), torch.full((1, 4), 0.25))
    total.add_rows(slice(1, 5), torch.full((2, 6), 0.25), 1)
    assert total.total.tolist() == [0.5, 1, 0.75, 0.75, 0.5, 0]


def test_a_sum_that_begins_below_zero_is_the_same_bits() -> None:
    """Rounded to nothing from below: no negative zero, wherever the sum begins."""
    total = ExactSum(2, 1.0, like=torch.zeros(0))
    total.add_sum(slice(0, 2), torch.full((1, 2), -1e-30))
    assert not np.signbit(total.total.numpy()).any()


class OneBuffer(nn.Module):
    """A network that writes each micro-batch's rows to the memory of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 64)
        self.memory = torch.zeros(64, 8)

    def forward(self, rows: Tensor) -> Tensor:
        own = self.memory[: len(rows)]
        own.copy_(rows)
        outputs: Tensor = self.layer(own)
        return outputs


def test_memory_that_is_used_again_changes_no_vector_that_was_measured() -> None:
    """Small rows, then large ones in their place: 2,828 C moved where products were held."""
    rows = np.full((40, 1, 8), 1e-3, np.float32)
    rows[20:] = 1e3
    whole = UnitBatch(
        rows=rows, valid=np.ones((40, 1), bool), draws=np.zeros((40, 1, 0)), blocks=(20, 20)
    )
    null = replace(whole, valid=np.arange(40)[:, None] > 0)
    update = GradientLocalUpdate(
        module=OneBuffer(), row_loss=Summed(), clip_norm=1e-6, micro_batch_rows=512
    )
    start = update._flat.numpy().copy()
    sums = [update.clipped_sum(start, units).copy() for units in (whole, null)]
    paid = replace(PAID, clip_norm=1e-6).sensitivity(update.dimension)
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= paid


def test_parts_are_nearly_equal_and_cross_no_block() -> None:
    assert equal_parts(0, 5) == []
    assert equal_parts(257, 256) == [129, 128]
    units = replace(batch(10), blocks=(3, 0, 7))
    assert [len(part) for part in units.micro_batches(4)] == [3, 4, 3]
    with pytest.raises(ConfigError, match="blocks must add up"):
        replace(units, blocks=(3, 3))


def test_the_oracle_by_opacus_is_exact_too() -> None:
    update = ToyUpdate(dtype=torch.float32, per_unit_gradients="opacus")()
    total = update.clipped_sum(initial_parameters(torch.float32), batch(20))
    granularity = lattice_granularity(1.0, update.dimension)
    assert (np.rint(total / granularity) * granularity == total).all()
    assert book_keeping.supports(update.module)


class TokensFirst(nn.Module):
    """A network whose layers see rows and tokens on one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        flat = self.layer(self.norm(rows.reshape(-1, 4)))
        return flat.view(len(rows), -1).sum(dim=1, keepdim=True)


def test_layers_that_see_tokens_as_rows_are_refused_by_both_paths() -> None:
    """Each token would be clipped as a unit, and a unit move the sum by as many clip norms."""
    update = GradientLocalUpdate(module=TokensFirst(), row_loss=OneWeight(), clip_norm=1.0)
    rows = np.ones((3, 1, 64), np.float32)
    units = UnitBatch(rows=rows, valid=np.ones((3, 1), bool), draws=np.zeros((3, 1, 0)))
    with pytest.raises(ValueError, match="rows on its first axis"):
        update.clipped_sum(np.zeros(update.dimension, np.float32), units)


def test_a_bias_that_comes_before_its_weight_is_added_in_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distributed_privrl.updates.layer_calls._FORMING_COST", 1e-9)
    updates = []
    for path in ("book_keeping", "opacus"):
        module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        weight = module[0].weight
        del module[0].weight
        module[0].weight = weight
        assert [name for name, _ in module.named_parameters()][:2] == ["0.bias", "0.weight"]
        updates.append(
            GradientLocalUpdate(
                module=module, row_loss=OneWeight(), clip_norm=1.0, per_unit_gradients=path
            )
        )
    rows = np.ones((1, 2, 3), np.float32)
    units = UnitBatch(rows=rows, valid=np.ones((1, 2), bool), draws=np.zeros((1, 2, 0)))
    start = np.ones(updates[0].dimension, np.float32)
    found, expected = (update.clipped_sum(start, units) for update in updates)
    assert np.linalg.norm(found) <= 1.0
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("clip_norm", [1e-5, 1.39e-5, 2e-5, 1e-4, 1e-3, 1.0])
def test_gradients_of_denormal_steps_are_null_rather_than_too_long(clip_norm: float) -> None:
    """Inputs near the largest float: what scales them rounds up to whole denormal steps."""
    update = GradientLocalUpdate(
        module=nn.Linear(64, 64, bias=False), row_loss=Summed(), clip_norm=clip_norm
    )
    for size in (3e38, 2e37, 1e38):
        unit = UnitBatch(
            rows=np.full((1, 1, 64), size, np.float32),
            valid=np.ones((1, 1), bool),
            draws=np.zeros((1, 1, 0)),
        )
        vector = update.clipped_sum(np.zeros(update.dimension, np.float32), unit)
        assert np.linalg.norm(vector) <= clip_norm


def test_half_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="float16"):
        GradientLocalUpdate(module=nn.Linear(2, 1).half(), row_loss=OneWeight(), clip_norm=1.0)
