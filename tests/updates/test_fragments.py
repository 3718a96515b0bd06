"""Units of many fragments with many tokens: one vector a unit, clipped once, norm <= C."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.privacy.calibration import SUM_SLACK
from distributed_privrl.privacy.noise import LATTICE_SLACK, lattice_granularity
from distributed_privrl.rounds.worker import (
    LocalUpdateWorker,
    SecretOfRun,
    StoredFragments,
    WorkerSpec,
)
from distributed_privrl.updates import book_keeping, layer_calls
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.layer_adapters import LinearAdapter
from distributed_privrl.updates.local_update import UnitBatch
from tests.updates.tokens import (
    TokenLoss,
    TokenUpdate,
    clipped,
    fragments,
    token_parameters,
    unit_vectors,
)

PARAMETERS = token_parameters()
FORMING = pytest.mark.parametrize(
    "cost", [1e9, 2, 1e-9], ids=["gram", "as it is cheaper", "formed"]
)


@pytest.fixture
def forming(cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_calls, "_FORMING_COST", cost)


def steps(units: int, clip_norm: float) -> float:
    """Return how far rounding to the lattice moves a coordinate of a sum."""
    return units * lattice_granularity(clip_norm, len(PARAMETERS)) + 1e-9


@FORMING
@pytest.mark.usefixtures("forming")
@pytest.mark.parametrize("clip_norm", [0.3, 55.0, 1e6])
@pytest.mark.parametrize("counts", [(1, 3, 2, 5), (2, 2, 2), (1, 1, 1, 1), (40,)])
def test_a_units_vector_is_the_clipped_mean_over_its_fragments(
    counts: tuple[int, ...], clip_norm: float
) -> None:
    units = fragments(counts)
    vectors = unit_vectors(PARAMETERS, units)
    norms = np.linalg.norm(vectors, axis=1)
    if clip_norm == 55 and len(counts) == 4:
        assert norms.min() < 55 < norms.max(), "some are clipped, some are not"
    actual = TokenUpdate(clip_norm=clip_norm)().clipped_sum(PARAMETERS, units)
    expected = clipped(vectors, clip_norm)
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=steps(len(counts), clip_norm))


@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_opacus_agrees(clip_norm: float | None) -> None:
    units = fragments((3, 1, 4))
    sums = [
        TokenUpdate(clip_norm=clip_norm, per_unit_gradients=method)().clipped_sum(PARAMETERS, units)
        for method in ("book_keeping", "opacus")
    ]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5, atol=steps(3, clip_norm or 1e-3))


def test_both_ways_are_taken_by_cost() -> None:
    def call(tokens: int, width: int) -> layer_calls.LayerCall:
        linear = LinearAdapter(nn.Linear(1, 1))
        place = layer_calls.Place("", linear, slice(0), None, by_products=True)
        return layer_calls.LayerCall(place, tokens, *torch.ones(2, 4 * tokens, width))

    assert not call(1, 64).is_formed(1)
    assert not call(1, 64).is_formed(4)
    assert call(166, 256).is_formed(1)
    assert call(166, 64).is_formed(4)
    assert not call(4, 512).is_formed(1)
    assert call(17, 10**4).is_formed(1), "more addends than float32 sums are trusted for"


@FORMING
@pytest.mark.usefixtures("forming")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=15, deadline=None)
@given(exponent=st.floats(-40, 20), seed=st.integers(0, 10**6), count=st.integers(1, 20))
def test_one_unit_never_exceeds_the_clip_norm(
    exponent: float, seed: int, count: int, dtype: torch.dtype
) -> None:
    unit = fragments((count,), seed=seed, scale=10**exponent)
    update = TokenUpdate(clip_norm=0.7, dtype=dtype)()
    vector = update.clipped_sum(token_parameters(dtype), unit).astype(np.float64)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= 0.7


@FORMING
@pytest.mark.usefixtures("forming")
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38, 1e-42])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_bad_fragment_makes_its_unit_null_and_no_other(
    poison: float, dtype: torch.dtype
) -> None:
    units, parameters = fragments(), token_parameters(dtype)
    update = TokenUpdate(clip_norm=0.5, dtype=dtype)()
    null = replace(units, valid=units.valid & (np.arange(4) != 3)[:, None])
    others = update.clipped_sum(parameters, null).copy()
    rows = units.rows.copy()
    rows[3, 2, 4] = poison
    moved = update.clipped_sum(parameters, replace(units, rows=rows)).astype(np.float64) - others
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved) <= 0.5 * (1 + 1e-6)
    if not np.isfinite(poison):
        np.testing.assert_allclose(moved, 0, atol=1e-6)
    elif poison < 1:
        assert np.linalg.norm(moved) > 0.4


def test_more_fragments_do_not_move_the_sum_further() -> None:
    for count in (1, 4, 64):
        unit = fragments((count,), scale=100)
        unit.rows[:], unit.draws[:] = unit.rows[:, :1], unit.draws[:, :1]  # all pull alike
        vector = TokenUpdate(clip_norm=0.5)().clipped_sum(PARAMETERS, unit)
        assert 0.499 < np.linalg.norm(vector) <= 0.5


def test_invalid_fragments_are_null_but_counted() -> None:
    units = fragments((4, 2))
    valid = units.valid.copy()
    valid[0, [1, 2]] = False
    actual = TokenUpdate(clip_norm=1e6)().clipped_sum(PARAMETERS, replace(units, valid=valid))
    kept = fragments((4, 2))
    kept.rows[0, 1], kept.draws[0, 1] = kept.rows[0, 3], kept.draws[0, 3]
    vectors = unit_vectors(PARAMETERS, replace(kept, counts=np.array([2, 2])))
    np.testing.assert_allclose(actual, vectors[0] / 2 + vectors[1], rtol=1e-6, atol=steps(2, 1e6))


def test_the_order_of_a_units_fragments_does_not_matter() -> None:
    units = fragments((5, 3))
    turned = fragments((5, 3))
    for values in (turned.rows, turned.draws):
        values[0] = values[0, [3, 0, 4, 1, 2]]
    update = TokenUpdate(clip_norm=0.3)()
    expected = update.clipped_sum(PARAMETERS, units).copy()
    np.testing.assert_allclose(update.clipped_sum(PARAMETERS, turned), expected, atol=1e-12)


@pytest.mark.parametrize("micro_batch_rows", [1, 4, 7, 1024])
@pytest.mark.parametrize("held", [2**26, 1000])
def test_micro_batches_do_not_change_the_sum(
    micro_batch_rows: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_keeping, "_FORMED_NUMBERS", held)
    counts = tuple(np.random.default_rng(2).integers(1, 6, 40).tolist())
    units = fragments(counts)
    expected = clipped(unit_vectors(PARAMETERS, units), 0.5)
    actual = TokenUpdate(clip_norm=0.5, micro_batch_rows=micro_batch_rows)()
    np.testing.assert_allclose(
        actual.clipped_sum(PARAMETERS, units), expected, rtol=1e-7, atol=steps(40, 0.5)
    )


def test_a_micro_batch_holds_whole_units_in_their_order() -> None:
    units = fragments((3, 1, 2, 7, 1, 2, 2))
    parts = [part.row_counts.tolist() for part in units.micro_batches(15)]
    assert parts == [[3, 1], [2, 7], [1, 2], [2]]  # as many rows as the largest unit for each
    second = list(units.micro_batches(15))[1]
    np.testing.assert_array_equal(second.rows, units.rows[2:4])
    np.testing.assert_array_equal(second.draws, units.draws[2:4])
    np.testing.assert_allclose(second.weights, [[1 / 2] * 2 + [0] * 5, [1 / 7] * 7])
    with pytest.raises(ConfigError, match="counts must be"):
        replace(units, counts=np.array([0, 1, 2, 7, 1]))
    with pytest.raises(ConfigError, match="counts must be"):
        replace(units, counts=np.array([8, 1, 2, 7, 1]))


class _CancellingLoss:
    draw_count = 1

    def __call__(self, module: nn.Module, rows: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        return module(rows[:, None].expand(-1, 3, -1)).sum(dim=(1, 2)) * draws[:, 0]


@FORMING
@pytest.mark.usefixtures("forming")
@pytest.mark.parametrize("difference", [0.0, 1e-7, 1e-3])
def test_cancelling_fragments_cannot_smuggle_a_large_rounding_error(difference: float) -> None:
    # Opposite gradients of 1e6: their exact sum is small, its float32 sum is not.
    update = GradientLocalUpdate(module=nn.Linear(5, 5), row_loss=_CancellingLoss(), clip_norm=1.0)
    generator = np.random.default_rng(1)
    unit = UnitBatch(
        rows=np.repeat(generator.normal(size=(1, 1, 5)), 4, axis=1).astype(np.float32),
        valid=np.ones((1, 4), bool),
        draws=1e6 * np.array([[[1], [-1 - difference], [1 / 3], [-1 / 3]]]),
        counts=np.array([4]),
    )
    vector = update.clipped_sum(np.zeros(30, np.float32), unit).astype(np.float64)
    assert np.linalg.norm(vector) <= 1.0


class _SteeredLoss:
    """The gradient of a row is its first number times one pattern on all outputs."""

    draw_count = 1

    def __call__(self, module: nn.Module, rows: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        return module(torch.full((len(rows), 64), 1 / 64)).sum(dim=1) * rows[:, 0]


MOST_FRAGMENTS = 40


def _steered(units: list[list[float]]) -> UnitBatch:
    counts = np.array([len(unit) for unit in units])
    rows = np.zeros((len(units), MOST_FRAGMENTS, 1), np.float32)
    for unit, own in enumerate(units):
        rows[unit, : len(own), 0] = own
    valid = np.ones(rows.shape[:2], bool)
    return UnitBatch(rows=rows, valid=valid, draws=np.zeros(rows.shape), counts=counts)


@FORMING
@pytest.mark.usefixtures("forming")
@pytest.mark.parametrize("count", [1, 2, 5, 9, 40])
def test_how_many_fragments_a_unit_has_changes_no_other_units_vector(count: int) -> None:
    # Gradients of 1e5 that nearly cancel: what bounds their sum must not depend on a mate's size.
    update = GradientLocalUpdate(
        module=nn.Linear(64, 64), row_loss=_SteeredLoss(), clip_norm=1.0, micro_batch_rows=64
    )
    others = [[1e5, -1e5 + 0.37]] * 11
    parameters = np.zeros(update.dimension, np.float32)

    def moved(mate: list[float]) -> float:
        sums = [
            update.clipped_sum(parameters, _steered(units)).copy()
            for units in ([*others, [0.0]], [*others, mate])
        ]
        return float(np.linalg.norm(sums[1] - sums[0]))

    assert moved([0.0] * count) == 0
    assert 0.9 < moved([1.0] * count) <= 1.0 + SUM_SLACK


@FORMING
@pytest.mark.usefixtures("forming")
def test_norms_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    right = book_keeping.squared_norms
    monkeypatch.setattr(book_keeping, "squared_norms", lambda rows: right(rows) * 0.97)
    vector = TokenUpdate(clip_norm=0.5)().clipped_sum(PARAMETERS, fragments((6,), scale=30))
    assert 0.49 < np.linalg.norm(vector) <= 0.5


@pytest.mark.parametrize(("units", "rows"), [(64, 2), (256, 16), (256, 512)])
@pytest.mark.parametrize("cost", [1e-9, 1e9])
@pytest.mark.usefixtures("forming")
def test_float32_sums_stay_within_the_slack_that_is_paid_for(units: int, rows: int) -> None:
    # All units alike: partial sums are as large as they can be. One is made null.
    one = fragments((2,), scale=30)
    several = UnitBatch(
        rows=np.repeat(one.rows, units, axis=0),
        valid=np.ones((units, 2), bool),
        draws=np.repeat(one.draws, units, axis=0),
    )
    parameters = token_parameters(torch.float32)
    update = TokenUpdate(dtype=torch.float32, micro_batch_rows=rows)()
    own = update.clipped_sum(parameters, one).copy()
    whole = update.clipped_sum(parameters, several).copy()
    several.valid[5] = False
    without = update.clipped_sum(parameters, several)
    assert 0.999 < np.linalg.norm(own) <= 1.0 + LATTICE_SLACK
    assert np.linalg.norm(whole - without - own) <= SUM_SLACK + LATTICE_SLACK


def test_layers_must_see_rows_on_their_first_axis_once() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.layer(tokens.reshape(-1, 3)).view(tokens.shape)

    class Twice(Flattened):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(tokens))

    class Unused(Flattened):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.layer(tokens)
            return self.other(tokens)

        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(3, 3)

    cases = (Flattened(), "first axis"), (Twice(), "called once"), (Unused(), "no part")
    for module, message in cases:
        update = GradientLocalUpdate(module=module, row_loss=TokenLoss(), clip_norm=1.0)
        with pytest.raises(ValueError, match=message):
            update.clipped_sum(np.zeros(update.dimension, np.float32), fragments((2, 1)))


SPACES = Box(-9, 9, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)
ENCODER = FragmentEncoder(
    TransitionEncoder(*SPACES, Scaling(offset=np.zeros(7), scale=np.ones(7))), horizon=2
)


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    """12 trajectories of 1 to 9 steps, of which 1, 4, 5 and 10 are patient 1's."""
    lengths = np.array([3, 9, 1, 2, 4, 1, 5, 6, 7, 8, 2, 3])
    generator = np.random.default_rng(0)
    units = np.arange(12, dtype=np.uint64)
    units[[1, 4, 5, 10]] = 1
    steps = int(lengths.sum())
    trajectories = Trajectories(
        observations=generator.normal(size=(steps + 12, 2)),
        actions=generator.uniform(-1, 1, (steps, 1)),
        rewards=generator.normal(size=steps),
        terminated=np.zeros(steps, bool),
        truncated=np.zeros(steps, bool),
        offsets=offsets_of(lengths),
        unit_ids=units,
    )
    store = DatasetStore(tmp_path / "datasets")
    store.write_trajectories(
        "a-v0",
        trajectories,
        observation_space=SPACES[0],
        action_space=SPACES[1],
        unit_column="patient_id",
    )
    return store


class FragmentFit:
    """Fits fragments of two steps of S = 8 numbers as they are, with noise."""

    draw_count = ENCODER.width

    def __call__(self, module: nn.Module, rows: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        condition, steps, mask = ENCODER.layout.split(rows)
        noise = ENCODER.layout.split(draws)[1]
        tokens = torch.cat((condition[:, None], steps + noise), dim=1)
        return ((module(tokens)[:, 1:] - steps).square().sum(dim=2) * mask).sum(dim=1)


class FragmentUpdate:
    draw_count = ENCODER.width

    def __call__(self) -> GradientLocalUpdate:
        return GradientLocalUpdate(
            module=nn.Linear(8, 8).double(), row_loss=FragmentFit(), clip_norm=0.5
        )


def workers(store: DatasetStore, count: int, **settings: object) -> list[LocalUpdateWorker]:
    (ref,) = shard_refs(store, "a-v0", count=1, unit="patient_id")
    return [
        LocalUpdateWorker(
            WorkerSpec(
                source=StoredFragments(
                    ref=ref, encoder=ENCODER.to_json(), max_fragments_per_unit=7
                ),
                local_update=FragmentUpdate(),
                sampling_probability=0.7,
                secret=SecretOfRun(run_id="run", insecure_key=3),
                index=index,
                workers=count,
                blocks=6,
                all_rows=True,
                most_rows=7,
                **settings,  # type: ignore[arg-type]
            )
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("copies", [1, 2])
def test_the_number_of_workers_does_not_change_the_sum(store: DatasetStore, copies: int) -> None:
    parameters = np.random.default_rng(1).normal(size=72)
    for nonce in ("a/0", "b/5"):
        sums = [
            np.sum(
                [
                    worker.clipped_sum(parameters, nonce)
                    for worker in workers(store, count, copies=copies)
                ],
                axis=0,
            )
            for count in (1, 2, 5)
        ]
        assert np.linalg.norm(sums[0]) > 0.5
        np.testing.assert_array_equal(sums[1], sums[0])
        np.testing.assert_array_equal(sums[2], sums[0])


def test_a_worker_takes_all_rows_of_a_unit_with_draws_of_their_own(store: DatasetStore) -> None:
    (worker,) = workers(store, 1, copies=2)
    shard = worker._shard
    lengths = np.diff(shard.offsets)
    assert lengths.tolist() == [2, 7, 1, 1, 3, 3, 4, 4, 2]  # patient 1 has 9 fragments, capped
    included = np.array([0, 1, 3])
    batch = worker._batch(included, "4")
    assert batch.counts is not None
    assert batch.counts.tolist() == [4, 14, 2]
    for u, unit in enumerate(included):
        expected = np.repeat(shard.rows[shard.offsets[unit] : shard.offsets[unit + 1]], 2, axis=0)
        np.testing.assert_array_equal(batch.rows[u, : batch.counts[u]], expected)
    assert batch.rows.shape[1] == 14  # the public cap, whatever they have
    draws = batch.draws[np.arange(14) < batch.counts[:, None]]
    assert len(np.unique(draws[:, 0])) == 20
    assert 0.8 < draws.std() < 1.2
    alone = worker._batch(included[:1], "4")
    np.testing.assert_array_equal(alone.draws[0], batch.draws[0])


def test_one_unit_moves_the_workers_sum_by_the_clip_norm_at_most(store: DatasetStore) -> None:
    (worker,) = workers(store, 1)
    shard, parameters = worker._shard, np.random.default_rng(1).normal(size=72)
    everyone = worker._batch(np.arange(9), "0")
    whole = worker._update.clipped_sum(parameters, everyone).copy()
    for unit in range(9):
        shard.valid[shard.offsets[unit] : shard.offsets[unit + 1]] = False
        null = worker._batch(np.arange(9), "0")
        without = worker._update.clipped_sum(parameters, null).astype(np.float64)
        shard.valid[:] = True
        assert 0.4 < np.linalg.norm(whole - without) <= 0.5 * (1 + LATTICE_SLACK)
