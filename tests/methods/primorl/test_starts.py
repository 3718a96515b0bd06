"""Start states: the environment's resets, or noisy moments that are charged once."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import scaling_from_bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.primorl import start_states
from distributed_privrl.methods.primorl.start_states import (
    GaussianStarts,
    MomentsRelease,
    NoisyStarts,
    PooledStarts,
    environment_starts,
    starts_question,
)
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.certificate import build_certificate
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds.holding import Asked, answered
from tests.worlds.ledgers import DATASET, NULL

SPACES = Box(-np.inf, np.inf, (2,), np.float32), Box(-1, 1, (1,), np.float32)
BOUNDS = Bounds(
    low=np.array([-4.0, 0.0, -1.0, -1.0]),
    high=np.array([4.0, 10.0, 1.0, 1.0]),
    columns=("observation_0", "observation_1", "action_0", "reward"),
)
DIFFERENCES = RowCoding(next_observation="difference")
ENCODER = TransitionEncoder(
    *SPACES, scaling_from_bounds(BOUNDS, *SPACES, coding=DIFFERENCES), DIFFERENCES
)
SCALE = ENCODER.scaling.scale[:2]
OFFSET = ENCODER.scaling.offset[:2]


def release(width: int = 3, relation: Relation = NULL, clip_norm: float = 1.5) -> MomentsRelease:
    return MomentsRelease(width=width, clip_norm=clip_norm, epsilon=1.0, relation=relation)


def totals_of(asked: MomentsRelease, vectors: np.ndarray) -> np.ndarray:
    """Return the sums over units in steps: whole numbers."""
    return asked.totals(vectors, asked.mechanism("trajectory"))


def moments_of(asked: MomentsRelease, vectors: np.ndarray) -> np.ndarray:
    """Return the same in units of the clip norm and its square."""
    return totals_of(asked, vectors) * asked.mechanism("trajectory").lattice


def extreme_vectors(width: int, clip_norm: float = 1.5) -> np.ndarray:
    corners = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=width)))
    noise = np.random.default_rng(0).normal(size=(300, width))
    largest = np.finfo(np.float64).max * corners  # overflows when a small norm divides it
    within = clip_norm * corners / math.sqrt(width)
    return np.concatenate([corners, within, noise, 1e300 * noise, largest])


@pytest.mark.parametrize("clip_norm", [1.5, 1e-3])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_a_unit_moves_the_totals_by_no_more_than_is_claimed_and_can_move_them_so_far(
    width: int, clip_norm: float
) -> None:
    vectors = extreme_vectors(width, clip_norm)
    asked = release(width, clip_norm=clip_norm)
    paid = asked.mechanism("trajectory").sensitivity_steps
    all_totals = [totals_of(asked, row[None]) for row in vectors]
    distances = [int(np.abs(one).sum()) for one in all_totals]
    assert max(distances) <= paid
    assert max(distances) >= 0.9999 * paid
    # Beside others it moves them as far: totals are sums of whole numbers.
    everyone = totals_of(asked, vectors)
    assert everyone.dtype == np.int64
    for index in range(0, len(vectors), 17):
        without = totals_of(asked, np.delete(vectors, index, axis=0))
        np.testing.assert_array_equal(everyone - without, all_totals[index])


def test_a_replaced_unit_moves_them_by_twice_that_at_most() -> None:
    asked = release(2, Relation.REPLACE_ONE)
    rows = np.stack([totals_of(asked, row[None]) for row in extreme_vectors(2)])
    largest = int(np.abs(rows[:, None] - rows).sum(axis=2).max())
    assert asked.sensitivity == 2 * release(2).sensitivity
    assert largest <= asked.mechanism("trajectory").sensitivity_steps


def test_rounding_after_the_sum_would_not_be_what_a_unit_is_charged_for() -> None:
    """Terms that each round up by half a step: their sum moves by whole steps, as is paid for."""
    asked = release(1, clip_norm=1.0)
    mechanism = asked.mechanism("trajectory")
    half = np.full((1000, 1), 1.5 * mechanism.lattice)
    assert totals_of(asked, half)[0] == 2000
    assert totals_of(asked, half[1:])[0] == 1998


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_counts_as_zero(bad: float) -> None:
    assert totals_of(release(), np.array([[0.1, bad, 0.2]])).tolist() == [0] * 9
    assert totals_of(release(), np.zeros((0, 3))).tolist() == [0] * 9


def test_totals_are_the_moments_of_clipped_vectors() -> None:
    rows = np.array([[0.3, 0.4], [6.0, 8.0]])  # the second has norm 10: clipped to (1.2, 1.6)
    asked = release(2, clip_norm=2.0)
    expected = [1.5, 2.0, 0.09 + 1.44, 0.12 + 1.92, 0.16 + 2.56]
    found = asked.parts(rows).sum(axis=0) * [2, 2, 4, 4, 4]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(moments_of(asked, rows) * [2, 2, 4, 4, 4], expected, atol=2e-5)


def test_moments_of_totals_are_mean_and_covariance() -> None:
    rows = np.random.default_rng(1).normal([0.2, -0.1], [0.1, 0.3], (500, 2))
    asked = release(2, clip_norm=5.0)
    mean, root = asked.moments(moments_of(asked, rows), 500)
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(root @ root.T, np.cov(rows.T, bias=True), atol=1e-5)


def test_a_covariance_of_no_distribution_loses_its_negative_part() -> None:
    asked = release(2, clip_norm=1.0)
    _, root = asked.moments(np.array([0.0, 0.0, 4.0, 0.0, -3.0]), 1)
    np.testing.assert_allclose(root @ root.T, [[4, 0], [0, 0]], atol=1e-9)


def test_noise_is_of_the_sensitivity_over_epsilon() -> None:
    """Both ways: a scale that is 5 % off is seen by 4,000 draws of 9 numbers."""
    asked = release()
    mechanism = asked.mechanism("trajectory")
    nothing = np.zeros(9, np.int64)
    noise = [mechanism.release(nothing, SeededNoise(key)) for key in range(4000)]
    assert np.abs(noise).mean() == pytest.approx(asked.sensitivity / asked.epsilon, rel=0.03)
    assert epsilon((mechanism.event,), delta=0.0, relation=NULL) == pytest.approx(1.0, rel=1e-6)


def trajectories(first: np.ndarray, units: list[int]) -> Trajectories:
    """Two steps each; only the first observation is given, the others are far away."""
    count = len(first)
    observations = np.full((count, 3, 2), 1e6)
    observations[:, 0] = first
    return Trajectories(
        observations=observations.reshape(-1, 2),
        actions=np.zeros((2 * count, 1)),
        rewards=np.zeros(2 * count),
        terminated=np.zeros(2 * count, bool),
        truncated=np.arange(2 * count) % 2 == 1,
        offsets=2 * np.arange(count + 1),
        unit_ids=np.array(units),
    )


class Stays(Asked):
    """Stays whose first observations are given."""

    def __init__(self, folder, first, units=None):
        rows = trajectories(first, list(range(len(first))) if units is None else units)
        super().__init__(folder, rows, SPACES, None if units is None else "patient_id")
        self.count = len(set(units or range(len(first))))

    @property
    def data(self):
        return DataConfig(sensitive=DATASET, unit=self.unit)

    def release(self, context=None, relation=NULL, **asked):
        starts, context = NoisyStarts(**{"epsilon": 1.0, **asked}), context or self.context()
        units = UnitCount(value=self.count, source="declared")
        question = starts_question(
            starts,
            self.data,
            context,
            encoder=ENCODER,
            bounds=BOUNDS,
            relation=relation,
            units=units,
        )
        cost = starts.epsilon
        return answered(
            "starts", question, self.data, context, relation=relation, epsilon=cost, units=units
        )


def normals(count=3000):
    return np.random.default_rng(0).normal([1.0, 7.0], [0.5, 1.0], (count, 2))


@pytest.fixture
def clinic(tmp_path):
    return Stays(tmp_path, normals()).budget(5.0)


def test_the_gaussian_is_that_of_the_first_observations(clinic):
    starts, stage = clinic.release(epsilon=4.0)
    drawn = starts.sample(20_000, torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_allclose(drawn.mean(axis=0), [1.0, 7.0], atol=0.1)
    np.testing.assert_allclose(drawn.std(axis=0), [0.5, 1.0], atol=0.1)
    assert (drawn >= BOUNDS.low[:2]).all()
    assert (drawn <= BOUNDS.high[:2]).all()
    assert (stage.name, stage.accountant, stage.delta) == ("starts", "pure", 0.0)
    assert clinic.spent == 4.0


def test_what_is_charged_is_what_the_certificate_states(clinic):
    _, stage = clinic.release(epsilon=0.7)
    (entry,) = clinic.ledger.entries()
    (event,) = stage.events
    assert entry.id == "run/starts"
    assert (entry.epsilon, entry.delta) == (0.7, 0.0)
    assert event.kind == "discrete_laplace"
    cost = epsilon(stage.events, delta=stage.delta, relation=stage.relation, accountant="pure")
    assert cost == pytest.approx(0.7, rel=1e-6)
    assert cost <= entry.epsilon


def test_a_resume_returns_what_was_drawn_and_draws_nothing(clinic, monkeypatch):
    first, stage = clinic.release()
    monkeypatch.setattr(start_states, "_first_observations", None)
    second, again = clinic.release()
    torch.testing.assert_close(first.root, second.root, rtol=0, atol=0)
    torch.testing.assert_close(first.mean, second.mean, rtol=0, atol=0)
    assert (stage, clinic.spent) == (again, 1.0)
    with pytest.raises(UnsafeError, match="another"):
        clinic.release(epsilon=0.5)


def test_too_small_a_budget_is_refused_before_rows_are_read(tmp_path, monkeypatch):
    clinic = Stays(tmp_path, normals(10)).budget(0.5)
    monkeypatch.setattr(DatasetStore, "iter_trajectories", None)
    with pytest.raises(BudgetError, match="left"):
        clinic.release()
    assert clinic.ledger.entries() == []


def seen_vectors(clinic) -> np.ndarray:
    return start_states._first_observations(clinic.data, clinic.context(), 2)


def test_a_unit_s_trajectories_count_by_their_mean(tmp_path):
    first = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0], [np.nan, 1.0], [np.inf, 1.0]])
    clinic = Stays(tmp_path, first, units=[7, 8, 7, 8, 9])
    assert sorted(seen_vectors(clinic).tolist()) == [[3.0, 4.0], [3.0, 5.5]]


def test_a_unit_with_many_trajectories_moves_no_more_than_one_with_one(tmp_path):
    first = np.concatenate([normals(50), np.full((200, 2), 1e30)])
    with_it = Stays(tmp_path / "with", first, units=[*range(50), *[99] * 200])
    without = Stays(tmp_path / "without", first[:50], units=[*range(50)])
    asked = release(2, clip_norm=math.sqrt(2))
    moved = [totals_of(asked, (seen_vectors(one) - OFFSET) / SCALE) for one in (with_it, without)]
    paid = asked.mechanism("patient_id").sensitivity_steps
    assert 0 < np.abs(moved[0] - moved[1]).sum() <= paid


@pytest.mark.parametrize("relation", [NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE])
def test_the_certificate_with_the_stage_verifies(tmp_path, relation):
    clinic = Stays(tmp_path, normals(200)).budget(5.0, relation)
    context = clinic.context()
    _, stage = clinic.release(context, relation)
    certificate = build_certificate(
        method="test",
        stages=(stage,),
        spare_rounds=0,
        noise_source=context.noise_facts,
        ledger_entries=("run/starts",),
        outputs=(),
        versions={},
    )
    assert certificate.status == "valid"
    assert certificate.epsilon == pytest.approx(1.0, rel=1e-6)
    path = tmp_path / "certificate.json"
    path.write_text(certificate.to_json())
    assert verify_certificate(path).epsilon == certificate.epsilon


def test_a_gaussian_s_draws_are_clipped_to_the_bounds() -> None:
    starts = GaussianStarts(
        mean=torch.zeros(1),
        root=torch.eye(1),
        low=torch.tensor([-1.0]),
        high=torch.tensor([0.5]),
    )
    drawn = starts.sample(5000, torch.Generator().manual_seed(0))
    assert (float(drawn.min()), float(drawn.max())) == (-1.0, 0.5)
    # Between the bounds it is a normal: its share below zero is one half.
    assert float((drawn < 0).float().mean()) == pytest.approx(0.5, abs=0.04)


def test_the_environment_s_resets_are_a_pool_of_its_own_seeds() -> None:
    one, same, other = (
        environment_starts("Pendulum-v1", count=20, streams=Streams(seed)) for seed in (0, 0, 1)
    )
    assert one.pool.shape == (20, 3)
    assert len(torch.unique(one.pool, dim=0)) == 20
    torch.testing.assert_close(one.pool, same.pool)
    assert not torch.equal(one.pool, other.pool)
    drawn = one.sample(200, torch.Generator().manual_seed(0))
    assert set(map(tuple, drawn.tolist())) <= set(map(tuple, one.pool.tolist()))
    assert len(torch.unique(drawn, dim=0)) > 15


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool"):
        PooledStarts(torch.zeros(0, 3))
    with pytest.raises(ConfigError, match="count"):
        environment_starts("Pendulum-v1", count=0, streams=Streams(0))
    with pytest.raises(ConfigError, match="cannot be made"):
        environment_starts("NoSuchThing-v0", count=1, streams=Streams(0))
