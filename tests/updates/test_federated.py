"""DP-FedAvg's local update: kernel, torch.func and a plain loop agree; a unit moves C at most."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.shards import EncodedShard
from distributed_privrl.methods.primorl.update import (
    DynamicsRowLoss,
    DynamicsUpdate,
    TransitionColumns,
)
from distributed_privrl.models.dynamics import DynamicsEnsemble
from distributed_privrl.rounds.optimiser import ServerOptimiser, as_gradient
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.worker import LocalUpdateWorker, SecretOfRun, WorkerSpec
from distributed_privrl.updates.ensemble_clipping import EnsembleClip, EnsembleLayout
from distributed_privrl.updates.federated import FederatedUpdate, row_order
from distributed_privrl.updates.federated_config import ClipStrategy, FederatedConfig
from distributed_privrl.updates.functional_training import FunctionalTrainer
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.toy import ToyLoss, ToyNetwork

STRATEGIES: tuple[ClipStrategy, ...] = ("concatenated", "flat", "per_layer")
PROJECTIONS: tuple[Literal["batch", "end"], ...] = ("batch", "end")
COLUMNS = TransitionColumns(inputs=(0, 1, 2, 3), targets=(5, 6, 7, 4))
WIDTH, LONGEST, CLIP_NORM = 9, 23, 0.05
CONFIG = FederatedConfig(batch_size=5, epochs=2, learning_rate=0.05, weight_decay=0.1)
UPDATE = DynamicsUpdate(
    columns=COLUMNS, members=3, hidden=(20, 17), config=CONFIG, clip_norm=CLIP_NORM
)
TOLERANCE = 1e-6


def parameters(update: DynamicsUpdate = UPDATE) -> NDArray[np.float32]:
    ensemble = update.ensemble(torch.Generator().manual_seed(1))
    return torch.cat([p.detach().reshape(-1) for p in ensemble.parameters()]).numpy()


PARAMETERS = parameters()


def units(count: int, *, seed: int = 0, scale: float = 1.0, draws: int = 0) -> UnitBatch:
    """Return ragged units of which the fourth has no valid row, and others some that are not."""
    generator = np.random.default_rng(seed)
    valid = generator.random((count, LONGEST)) < 0.8
    valid[3:4] = False
    return UnitBatch(
        rows=(scale * generator.normal(size=(count, LONGEST, WIDTH))).astype(np.float32),
        valid=valid,
        draws=generator.normal(size=(count, LONGEST, draws)),
        counts=generator.integers(1, LONGEST + 1, count),
    )


def one(batch: UnitBatch, index: int) -> UnitBatch:
    return batch.part(index, index + 1)


def changed(**values: Any) -> DynamicsUpdate:
    """Return the update with another configuration of the local training, or other settings."""
    names = set(FederatedConfig.__dataclass_fields__)
    config = replace(CONFIG, **{k: v for k, v in values.items() if k in names})
    return replace(UPDATE, config=config, **{k: v for k, v in values.items() if k not in names})


def literal(update: DynamicsUpdate, start: NDArray[np.float32], unit: UnitBatch) -> Tensor:
    """Return one unit's vector in float64, as algorithms 2 and 3 read; nothing shared with ours."""
    config = update.config
    ensemble = update.ensemble(torch.Generator()).double()
    nn.utils.vector_to_parameters(torch.from_numpy(start).double(), ensemble.parameters())
    names = [name for name, _ in ensemble.named_parameters()]
    begin = {name: p.detach().clone() for name, p in ensemble.named_parameters()}
    theta = {name: values.clone().requires_grad_() for name, values in begin.items()}
    layers = len(update.hidden) + 1
    low, high = update.log_variance_range
    targets = len(update.columns.targets)
    count = int(unit.row_counts[0])
    rows, valid = torch.from_numpy(unit.rows[0]).double(), unit.valid[0]
    for epoch in range(config.epochs):
        order = np.arange(count)
        if config.shuffle:
            order = np.argsort(unit.draws[0, :count, epoch])
        for first in range(0, count, config.batch_size):
            chosen = [row for row in order[first : first + config.batch_size] if valid[row]]
            if not chosen:
                continue
            for member in range(update.members):
                values = rows[chosen][:, update.columns.inputs]
                for layer in range(layers):
                    weight, bias = (theta[f"{kind}_{layer}"][member] for kind in ("weight", "bias"))
                    values = values @ weight + bias
                    values = functional.silu(values) if layer + 1 < layers else values
                mean, raw = values[:, :targets], values[:, targets:]
                bent = high - functional.softplus(high - raw)
                bent = low + functional.softplus(bent - low)
                squares = (mean - rows[chosen][:, update.columns.targets]) ** 2 / bent.exp()
                (0.5 * (bent + squares)).sum(dim=1).mean().backward()
            with torch.no_grad():
                for values in theta.values():
                    assert values.grad is not None
                    decay = config.learning_rate * config.weight_decay * values
                    values -= config.learning_rate * values.grad + decay
                    values.grad = None
            if config.projection == "batch":
                moved = {name: theta[name].detach() - begin[name] for name in names}
                moved = ensemble_clip(moved, update)
                theta = {name: (begin[name] + moved[name]).requires_grad_() for name in names}
    moved = ensemble_clip({name: begin[name] - theta[name].detach() for name in names}, update)
    return torch.cat([moved[name].reshape(-1) for name in names])


def ensemble_clip(moved: dict[str, Tensor], update: DynamicsUpdate) -> dict[str, Tensor]:
    """Clip as algorithm 3 reads."""
    if update.clip_norm is None:
        return moved
    moved = {name: values.clone() for name, values in moved.items()}
    layers, members = len(update.hidden) + 1, range(update.members)
    everything = [values[m] for values in moved.values() for m in members]
    groups = {
        "concatenated": [everything],
        "flat": [[values[m] for values in moved.values()] for m in members],
        "per_layer": [
            [moved[f"weight_{layer}"][m], moved[f"bias_{layer}"][m]]
            for m in members
            for layer in range(layers)
        ],
    }[update.config.strategy]
    bound = update.clip_norm / len(groups) ** 0.5
    for group in groups:
        norm = torch.cat([values.reshape(-1) for values in group]).norm()
        for values in group:
            values /= max(1.0, float(norm) / bound)
    return moved


def literal_sum(update: DynamicsUpdate, batch: UnitBatch) -> NDArray[np.float64]:
    return sum(literal(update, PARAMETERS, one(batch, u)).numpy() for u in range(len(batch)))


def functional_update(update: DynamicsUpdate) -> FederatedUpdate:
    """Return the update by torch.func in float64."""
    layers = ((80, 20), (340, 17), (136, 8))
    clip = EnsembleClip(
        layout=EnsembleLayout(members=update.members, layers=layers),
        clip_norm=update.clip_norm,
        strategy=update.config.strategy,
    )
    ensemble = update.ensemble(torch.Generator()).double()
    loss = DynamicsRowLoss(update.columns)
    return FederatedUpdate(FunctionalTrainer(ensemble, loss, update.config, clip), clip)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("clip_norm", [CLIP_NORM, None])
@pytest.mark.parametrize("shuffle", [False, True])
def test_kernel_equals_torch_func_equals_a_plain_loop(
    strategy: ClipStrategy, projection: Any, clip_norm: float | None, shuffle: bool
) -> None:
    update = changed(strategy=strategy, projection=projection, clip_norm=clip_norm, shuffle=shuffle)
    batch = units(6, draws=update.draw_count)
    expected = literal_sum(update, batch)
    assert np.abs(expected).max() > 0.01
    found = update().clipped_sum(PARAMETERS, batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    exact = functional_update(update).clipped_sum(PARAMETERS, batch)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=2.0**-19 * CLIP_NORM)
    single = replace(update, engine="functional")().clipped_sum(PARAMETERS, batch)
    np.testing.assert_allclose(single, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "other",
    [
        {"weight_decay": 0.099},
        {"learning_rate": 0.0501},
        {"batch_size": 6},
        {"epochs": 1},
        {"shuffle": True},
        {"log_variance_range": (-9.9, 1.0)},
        {"log_variance_range": (-10.0, 1.01)},
        {"columns": TransitionColumns(inputs=(0, 1, 3, 2), targets=(5, 6, 7, 4))},
        {"columns": TransitionColumns(inputs=(0, 1, 2, 3), targets=(5, 6, 4, 7))},
    ],
    ids=str,
)
def test_the_tolerance_sees_every_term(other: dict[str, Any]) -> None:
    batch = units(6, draws=2)
    right = changed(clip_norm=None)().clipped_sum(PARAMETERS, batch)
    wrong = changed(clip_norm=None, **other)().clipped_sum(PARAMETERS, batch)
    assert np.abs(right - wrong).max() > 3 * TOLERANCE


def test_the_strategies_and_projections_differ() -> None:
    batch = units(6)
    sums = [
        changed(strategy=strategy, projection=projection)().clipped_sum(PARAMETERS, batch)
        for strategy in STRATEGIES
        for projection in PROJECTIONS
    ]
    for i, first in enumerate(sums):
        for second in sums[:i]:
            assert np.abs(first - second).max() > 100 * TOLERANCE


@pytest.mark.parametrize(("inputs", "hidden"), [(4, (64, 64)), (6, (128, 128)), (3, (5,))])
@pytest.mark.parametrize("batch_size", [1, 16, 50])
def test_the_kernel_knows_other_sizes(
    inputs: int, hidden: tuple[int, ...], batch_size: int
) -> None:
    columns = TransitionColumns(inputs=tuple(range(inputs)), targets=(8, 7, 6))
    update = DynamicsUpdate(
        columns=columns,
        members=2,
        hidden=hidden,
        config=FederatedConfig(batch_size=batch_size, learning_rate=0.01),
        clip_norm=0.3,
    )
    batch = units(5)
    found = update().clipped_sum(parameters(update), batch)
    oracle = replace(update, engine="functional")().clipped_sum(parameters(update), batch)
    assert np.linalg.norm(oracle) > 0.05
    np.testing.assert_allclose(found, oracle, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("engine", ["kernel", "functional"])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=20, deadline=None)
@given(
    exponent=st.floats(-30, 38),
    seed=st.integers(0, 10**6),
    length=st.integers(1, LONGEST),
    poison=st.sampled_from([None, np.nan, np.inf, -np.inf, 3e38, 1e-42]),
)
def test_one_trajectory_never_exceeds_the_clip_norm(
    engine: Any,
    projection: Any,
    strategy: ClipStrategy,
    exponent: float,
    seed: int,
    length: int,
    poison: float | None,
) -> None:
    update = changed(strategy=strategy, projection=projection, engine=engine)()
    with np.errstate(over="ignore"):
        unit = replace(units(1, seed=seed, scale=10**exponent), counts=np.array([length]))
    if poison is not None:
        unit.rows[0, seed % LONGEST, seed % WIDTH] = poison
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = update.clipped_sum(PARAMETERS, unit)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= CLIP_NORM


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_long_updates_have_the_norm_itself(strategy: ClipStrategy, projection: Any) -> None:
    update = changed(strategy=strategy, projection=projection, clip_norm=1e-3)()
    norm = np.linalg.norm(update.clipped_sum(PARAMETERS, one(units(1), 0)))
    assert 1e-3 * (1 - 1e-5) < norm <= 1e-3


@pytest.mark.parametrize("engine", ["kernel", "functional"])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("column", [0, 4])
def test_a_unit_that_is_not_finite_is_null_and_leaves_the_others_alone(
    engine: Any, projection: Any, poison: float, column: int
) -> None:
    update = changed(projection=projection, engine=engine)()
    batch = replace(units(6), valid=np.ones((6, LONGEST), bool))
    rows = batch.rows.copy()
    rows[2, int(batch.row_counts[2]) // 2, column] = poison
    others = sum(update.clipped_sum(PARAMETERS, one(batch, u)) for u in (0, 1, 3, 4, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poisoned = update.clipped_sum(PARAMETERS, replace(batch, rows=rows))
    np.testing.assert_allclose(poisoned, others, rtol=0, atol=1e-7)


@pytest.mark.parametrize("engine", ["kernel", "functional"])
def test_rows_that_do_not_count_may_hold_anything(engine: Any) -> None:
    update = changed(engine=engine)()
    batch = units(6)
    rows = batch.rows.copy()
    rows[~(batch.valid & (np.arange(LONGEST) < batch.row_counts[:, None]))] = np.nan
    expected = update.clipped_sum(PARAMETERS, batch)
    np.testing.assert_array_equal(
        update.clipped_sum(PARAMETERS, replace(batch, rows=rows)), expected
    )
    assert not update.clipped_sum(PARAMETERS, one(batch, 3)).any()  # it has no valid row
    assert not update.clipped_sum(PARAMETERS, batch.part(0, 0)).any()


def test_numbers_behind_the_parameters_change_no_vector() -> None:
    """A broadcast may end with what no round trains: the kernel's vectors are as long as before."""
    batch = units(6)
    longer = np.concatenate([PARAMETERS, np.full(7, 1e3, np.float32)])
    for vectors in UPDATE().trainer.differences(longer, batch):
        assert vectors.shape == (len(batch), len(PARAMETERS))
    np.testing.assert_array_equal(
        UPDATE().clipped_sum(longer, batch), UPDATE().clipped_sum(PARAMETERS, batch)
    )


def test_a_unit_does_not_depend_on_the_units_beside_it() -> None:
    update, batch = UPDATE(), units(40)
    (vectors,) = ([*values.copy()] for values in update.trainer.differences(PARAMETERS, batch))
    for index in (0, 7, 39):
        (alone,) = update.trainer.differences(PARAMETERS, one(batch, index))
        np.testing.assert_array_equal(alone[0], vectors[index])


@pytest.mark.parametrize(
    ("strategy", "projection"), [("flat", "batch"), ("per_layer", "batch"), ("concatenated", "end")]
)
def test_a_member_does_not_depend_on_the_members_beside_it(
    strategy: ClipStrategy, projection: Any
) -> None:
    whole = changed(strategy=strategy, projection=projection)
    alone = replace(whole, members=1, clip_norm=CLIP_NORM / 3**0.5)
    if strategy == "concatenated":  # before it is clipped
        whole, alone = replace(whole, clip_norm=None), replace(alone, clip_norm=None)
    batch = units(5)
    together = _by_member(whole().clipped_sum(PARAMETERS, batch), 3)
    starts = _by_member(PARAMETERS, 3)
    for member in range(3):
        own = alone().clipped_sum(starts[member], batch)
        np.testing.assert_allclose(own, together[member], rtol=0, atol=1e-15)


def _by_member(vector: NDArray[Any], members: int) -> list[NDArray[Any]]:
    """Return each member's part of a flat vector."""
    parts: list[list[NDArray[Any]]] = [[] for _ in range(members)]
    start = 0
    for p in UPDATE.ensemble(torch.Generator()).parameters():
        for member, own in enumerate(vector[start : start + p.numel()].reshape(members, -1)):
            parts[member].append(own)
        start += p.numel()
    return [np.concatenate(own) for own in parts]


@dataclass(frozen=True, kw_only=True)
class RaggedShard:
    """Trajectories of unequal length, made from a seed in the worker's process."""

    units: int = 90

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        generator = np.random.default_rng(7)
        lengths = generator.integers(1, LONGEST, self.units)
        rows = generator.normal(size=(lengths.sum(), WIDTH)).astype(np.float32)
        valid = generator.random(len(rows)) < 0.9
        owner = np.repeat(np.arange(self.units, dtype=np.uint64), lengths)
        ids = np.arange(self.units, dtype=np.uint64)
        mine = np.ones(len(ids), bool) if keep is None else keep(ids)
        kept = mine[owner.astype(int)]
        return EncodedShard(
            rows=rows[kept],
            valid=valid[kept],
            unit_ids=ids[mine],
            offsets=np.concatenate([[0], np.cumsum(lengths[mine])]),
        )


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [2, 5])
def test_summing_over_workers_equals_one_worker(workers: int, shuffle: bool) -> None:
    def total(count: int) -> NDArray[np.float64]:
        return sum(
            LocalUpdateWorker(
                WorkerSpec(
                    source=RaggedShard(),
                    local_update=changed(shuffle=shuffle),
                    sampling_probability=0.5,
                    secret=SecretOfRun(run_id="run", insecure_key=3),
                    index=index,
                    workers=count,
                    blocks=7,
                    all_rows=True,
                    most_rows=LONGEST,
                )
            ).clipped_sum(PARAMETERS, "4")
            for index in range(count)
        )

    whole = total(1)
    assert np.linalg.norm(whole) > 10 * CLIP_NORM
    np.testing.assert_array_equal(total(workers), whole)


def test_sums_over_many_units_are_exact() -> None:
    batch = units(700, seed=3)
    update = UPDATE()
    exact = sum(update.clipped_sum(PARAMETERS, one(batch, u)).copy() for u in range(700))
    np.testing.assert_array_equal(update.clipped_sum(PARAMETERS, batch), exact)


def test_the_sum_points_down_the_loss() -> None:
    batch, update = units(20), changed(clip_norm=None, weight_decay=0.0)
    ensemble = update.ensemble(torch.Generator())
    loss = DynamicsRowLoss(COLUMNS)
    own = np.arange(batch.rows.shape[1]) < batch.row_counts[:, None]
    rows = torch.from_numpy(batch.rows[own & batch.valid])

    def value(vector: NDArray[Any]) -> float:
        nn.utils.vector_to_parameters(torch.from_numpy(vector).float(), ensemble.parameters())
        return float(loss(ensemble, rows, rows).detach().mean())

    step = update().clipped_sum(PARAMETERS, batch) / 20
    assert value(PARAMETERS - step) < value(PARAMETERS) - 0.1


def test_shuffled_rows_are_each_taken_once_an_epoch() -> None:
    config = replace(CONFIG, shuffle=True)
    batch = units(50, draws=3)
    order = row_order(batch, config, draws_used=1)
    assert order.shape == (50, 2, LONGEST)
    for unit, count in enumerate(batch.row_counts):
        for epoch in range(2):
            own = order[unit, epoch, :count]
            assert sorted(own) == list(range(count))
            assert (np.diff(batch.draws[unit, own, 1 + epoch]) > 0).all()
    assert (order[:, 0] != order[:, 1]).any()


def test_any_module_and_loss_train_locally() -> None:
    config = FederatedConfig(batch_size=4, epochs=2, learning_rate=0.02, weight_decay=0.3)
    module, count = ToyNetwork(), 3
    start = nn.utils.parameters_to_vector(module.parameters()).detach().numpy().copy()
    clip = EnsembleClip(layout=EnsembleLayout.of(module), clip_norm=None)
    update = FederatedUpdate(FunctionalTrainer(module, ToyLoss(), config, clip), clip)
    generator = np.random.default_rng(0)
    batch = UnitBatch(
        rows=generator.normal(size=(count, 10, 5)).astype(np.float32),
        valid=np.ones((count, 10), bool),
        draws=generator.normal(size=(count, 10, 5)),
    )
    expected = np.zeros_like(start)
    for unit in range(count):
        plain = ToyNetwork()
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.02, weight_decay=0.3)
        rows, draws = torch.from_numpy(batch.rows[unit]).double(), torch.tensor(batch.draws[unit])
        for first in (0, 4, 8) * 2:
            optimiser.zero_grad()
            own = slice(first, first + 4)
            ToyLoss()(plain, rows[own], draws[own]).mean().backward()
            optimiser.step()
        expected += start - nn.utils.parameters_to_vector(plain.parameters()).detach().numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(update.clipped_sum(start, batch), expected, atol=1e-12)
    assert update.trainer.draw_count == 5


def test_sgd_at_rate_one_moves_by_the_mean_update() -> None:
    update, batch = UPDATE(), units(20)
    total = update.clipped_sum(PARAMETERS, batch)
    vector = torch.from_numpy(PARAMETERS.copy())
    config = OptimiserConfig(rule="sgd", learning_rate=1.0, ema_decay=0.5)
    server = ServerOptimiser(vector, config, total_steps=5)
    server.step(as_gradient(total, 25.0, out=torch.empty_like(vector)))
    np.testing.assert_allclose(vector.numpy(), PARAMETERS - total / 25, rtol=0, atol=1e-7)
    assert set(server.tensors()) == {"parameters", "ema"}
    again = ServerOptimiser(torch.zeros_like(vector), config, total_steps=5)
    again.restore({name: values.clone() for name, values in server.tensors().items()}, steps=1)
    for optimiser in (server, again):
        optimiser.step(torch.ones_like(vector))
    for name, values in server.tensors().items():
        torch.testing.assert_close(again.tensors()[name], values)


def test_columns_come_from_the_layout() -> None:
    from gymnasium.spaces import Box

    spaces = Box(-1, 1, (3,), np.float32), Box(-1, 1, (1,), np.float32)
    layout = RowLayout(*spaces, coding=RowCoding(next_observation="difference"))
    assert TransitionColumns.of(layout) == COLUMNS
    with pytest.raises(ConfigError, match="next_observation='difference'"):
        TransitionColumns.of(RowLayout(*spaces))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"weight_decay": -0.1}, r"must lie in \[0, 1\)"),
        ({"weight_decay": 20.0}, r"must lie in \[0, 1\), got 0.05 x 20"),
        ({"projection": "never"}, "projection must be batch or end, got 'never'"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **values)


def test_parameters_of_another_ensemble_are_refused() -> None:
    with pytest.raises(ConfigError, match="parameters must be of shape"):
        UPDATE().clipped_sum(PARAMETERS[1:], units(2))


def test_an_ensemble_is_built_as_configured() -> None:
    ensemble = UPDATE.ensemble(torch.Generator().manual_seed(0))
    assert isinstance(ensemble, DynamicsEnsemble)
    assert (ensemble.members, ensemble.widths) == (3, (4, 20, 17, 8))
    assert UPDATE().dimension == sum(p.numel() for p in ensemble.parameters())
