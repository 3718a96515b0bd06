import math
import pickle
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.linear_figure import noise_multiplier_of_rho
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import linear_mdp, random_mdp
from distributed_privrl.environments.tabular import TabularMdp, optimal_policy, policy_value
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_presets import (
    published_ridge,
    theory_pessimism,
)
from distributed_privrl.methods.value_iteration.linear_settings import (
    VARIANCE_STATISTICS,
    LinearSettings,
    Pessimism,
    Ridge,
    Shares,
    Statistic,
    ValueBounds,
    releases,
)
from distributed_privrl.methods.value_iteration.ridge import noise_shift, regression
from distributed_privrl.methods.value_iteration.statistics import variance_half
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise
from tests.methods.value_iteration.linear_data import (
    learned,
    one_hot,
    sampled,
    trajectories_of,
    workers_of,
)

MDP = random_mdp(3, 2, 4, np.random.default_rng(0))
DATA = sampled(MDP, 300, seed=1)
DENSE = np.random.default_rng(2).normal(size=(3, 2, 4)) / 4


def settings_of(mdp: TabularMdp = MDP, **given: Any) -> LinearSettings:
    features = given.pop("features", one_hot(mdp.states, mdp.actions))
    return LinearSettings(**{"features": features, "horizon": mdp.horizon, "units": 300, **given})


class Drawn(NamedTuple):
    """A release: what it was for, and its noise in the statistic's own measure."""

    tag: int
    deviation: float


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """All releases of a test, in order."""
    found: list[Drawn] = []
    right = DiscreteGaussianRelease.release

    def spy(self: DiscreteGaussianRelease, *given: Any, tag: int = 0) -> Any:
        found.append(Drawn(tag, self.standard_deviation))
        return right(self, *given, tag=tag)

    monkeypatch.setattr(DiscreteGaussianRelease, "release", spy)
    return found


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "split": {},
    "unsplit": {"split": False},
    "shares": {"split": False, "shares": Shares(gram=3.0, values=0.1)},
    "reused": {"split": False, "reuse_gram": True},
    "pooled": {"split": False, "reuse_gram": True, "pool_grams": True},
    "centred": {"split": False, "centre_values": True, "pessimism": Pessimism(constant=0.02)},
    "pevi": {"method": "pevi"},
    "published": {"uniform_bounds": True, "ridge": published_ridge()},
    "published, unsplit": {"uniform_bounds": True, "split": False, "ridge": published_ridge()},
    "pooled pevi": {"method": "pevi", "pool_grams": True, "shares": Shares(gram=0.2)},
}


def rows_of(trajectories: Trajectories, h: int) -> list[tuple[int, int, int, float, bool]]:
    """(s, s', a, r, in the variance half) of every trajectory that has a step h, from 1."""
    rows = []
    for k in range(len(trajectories)):
        start, end = trajectories.offsets[k : k + 2]
        if start + h <= end:
            row = start + h - 1
            now, after = trajectories.observations[row + k : row + k + 2]
            half = bool(variance_half(trajectories.unit_ids[k : k + 1])[0])
            rows.append((now, after, trajectories.actions[row], trajectories.rewards[row], half))
    return rows


def naive_sigma(rows: list, table: np.ndarray, ahead: np.ndarray, most: int) -> np.ndarray:
    """Lines 4 to 8 of algorithm 2."""
    dimension = table.shape[-1]
    gram, beta, theta = np.eye(dimension), np.zeros(dimension), np.zeros(dimension)
    for s, s_next, a, _, _ in rows:
        gram += np.outer(table[s, a], table[s, a])
        beta += table[s, a] * ahead[s_next] ** 2
        theta += table[s, a] * ahead[s_next]
    beta, theta = np.linalg.solve(gram, beta), np.linalg.solve(gram, theta)
    sigma = np.ones(table.shape[:2])
    for s, a in np.ndindex(sigma.shape):
        second = min(max(table[s, a] @ beta, 0), most**2)
        first = min(max(table[s, a] @ theta, 0), most)
        sigma[s, a] = max(1, second - first**2)
    return sigma


def naive(
    trajectories: Trajectories, table: np.ndarray, horizon: int, settings: LinearSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 2 without noise, one row at a time, written apart from the package."""
    states, actions, dimension = table.shape
    values, policy = np.zeros((horizon + 1, states)), np.zeros((horizon, states), int)
    split = settings.split and settings.method == "vapvi"
    factor = math.sqrt(dimension)
    if settings.method == "pevi":
        zeta = math.log(2 * dimension * horizon * settings.units / settings.failure)
        factor = dimension * horizon * math.sqrt(zeta)
    offset = settings.pessimism.offset / (settings.units / 2 if split else settings.units)
    for h in range(horizon, 0, -1):
        rows = rows_of(trajectories, h)
        sigma = np.ones((states, actions))
        if settings.method == "vapvi":
            first = [row for row in rows if row[-1] or not split]
            sigma = naive_sigma(first, table, values[h], horizon - h + 1)
        gram, w = np.eye(dimension), np.zeros(dimension)
        for s, s_next, a, r, half in rows:
            if not (half and split):
                gram += np.outer(table[s, a], table[s, a]) / sigma[s, a]
                w += table[s, a] * (r + values[h, s_next]) / sigma[s, a]
        w = np.linalg.solve(gram, w)
        for s in range(states):
            q = []
            for phi in table[s]:
                width = math.sqrt(phi @ np.linalg.solve(gram, phi))
                gamma = settings.pessimism.constant * factor * width + offset
                q.append(max(min(phi @ w - gamma, horizon - h + 1), 0))
            policy[h - 1, s], values[h - 1, s] = int(np.argmax(q)), max(q)
    return policy, values


@pytest.mark.parametrize("method", ["vapvi", "pevi"])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("table", [one_hot(3, 2).table, DENSE], ids=["one-hot", "dense"])
def test_without_noise_it_is_vapvi_or_pevi(method: Any, split: bool, table: np.ndarray) -> None:
    given = {"method": method, "split": split, "features": FeatureMap(table=table)}
    for pessimism in (Pessimism(constant=0.01, offset=2.0), Pessimism(constant=0.3)):
        settings = settings_of(**given, pessimism=pessimism)
        actions, values = naive(DATA, table, MDP.horizon, settings)
        policy = learned(settings, DATA).policy()
        np.testing.assert_allclose(policy.values, values, atol=1e-9)
        np.testing.assert_array_equal(policy.actions, actions)


def test_variances_above_one_weigh_rows_as_the_naive_loop_has_it() -> None:
    """A long horizon, so that sigma exceeds 1 and the weights matter."""
    mdp = random_mdp(2, 2, 12, np.random.default_rng(5))
    jumps = replace(mdp, rewards=np.round(mdp.rewards), transitions=np.round(mdp.transitions, 1))
    data = sampled(jumps, 200, seed=1)
    settings = settings_of(jumps, split=False, pessimism=Pessimism(constant=0.1))
    _, values = naive(data, settings.features.table, 12, settings)
    np.testing.assert_allclose(learned(settings, data).policy().values, values, atol=1e-9)
    unweighted = learned(replace(settings, reuse_gram=True), data).policy().values
    assert np.abs(unweighted - values).max() > 1e-3


@pytest.mark.parametrize("name", ["split", "unsplit", "reused", "centred", "pevi", "pooled"])
def test_many_trajectories_and_little_noise_come_close_to_the_optimum(name: str) -> None:
    # The law of (s, a) is the same at every step, as a pooled matrix needs.
    mdp = random_mdp(3, 2, 4, np.random.default_rng(3))
    even = replace(
        mdp,
        transitions=np.full((1, 3, 2, 3), 1 / 3),
        rewards=mdp.rewards[:1],
        initial=np.full(3, 1 / 3),
    )
    best = policy_value(even, optimal_policy(even)[0])
    data = sampled(even, 20_000, seed=4)
    given = {**CONFIGURATIONS[name], "units": 20_000}
    settings = settings_of(even, **given, noise_multiplier=noise_multiplier_of_rho(1e4, 4))
    settings = replace(settings, pessimism=Pessimism(constant=1e-3))
    found = learned(settings, data, SeededNoise(0)).policy()
    assert best - policy_value(even, found.actions) < 0.02
    np.testing.assert_allclose(found.values[0], optimal_policy(even)[1][0], atol=0.2)


def test_the_synthetic_linear_mdp_is_learned_without_noise() -> None:
    mdp = linear_mdp("a", 5)
    assert mdp.features is not None
    data = sampled(mdp, 20_000, seed=0)
    settings = settings_of(
        mdp, features=FeatureMap(table=mdp.features), units=20_000, early_termination=False
    )
    found = learned(replace(settings, pessimism=Pessimism(constant=0.01)), data).policy()
    best = policy_value(mdp, optimal_policy(mdp)[0])
    assert best - policy_value(mdp, found.actions) < 0.02
    assert best - policy_value(mdp, mdp.behaviour) > 0.3


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_number_of_workers_changes_nothing(name: str, workers: int) -> None:
    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=3.0)
    one = learned(settings, DATA, SeededNoise(5)).tensors()
    more = learned(settings, DATA, SeededNoise(5), workers=workers).tensors()
    for key, tensor in one.items():
        np.testing.assert_array_equal(more[key].numpy(), tensor.numpy())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_draws_are_the_releases_that_are_listed(name: str) -> None:
    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=2.5)
    source = SecureNoise()
    learned(settings, DATA, source)
    listed = [releases(settings, index) for index in range(settings.horizon)]
    assert source.draws == sum(len(step) for step in listed)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("spread", [0.25, 1.5])
def test_every_step_costs_the_same_whatever_it_releases(name: str, spread: float) -> None:
    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=2.5)
    for index in range(settings.horizon):
        listed = releases(settings, index, ValueBounds(values=spread, targets=spread + 0.5))
        halves: list[list[float]] = [[], []]
        for statistic, release in listed.items():
            second = settings.halves and statistic in VARIANCE_STATISTICS
            halves[second].append(release.noise_multiplier**-2)
        for half in halves:
            assert not half or sum(half) == pytest.approx(2.5**-2)
        assert halves[0]


def test_variances_that_cannot_matter_are_not_estimated() -> None:
    """Centred values within [-1, 1] have a variance of 1 at most: sigma is 1 without a look."""
    source = SeededNoise(0)
    settings = settings_of(**CONFIGURATIONS["centred"], noise_multiplier=1e-3)
    learned(replace(settings, early_termination=False), DATA, source)
    assert source.draws == 2 * settings.horizon
    assert sum(len(releases(settings, index)) for index in range(4)) == 2 * 4 + 3
    plain = replace(settings, noise_multiplier=None, early_termination=False)
    pevi = replace(plain, method="pevi")
    same = Pessimism(constant=0.0)
    np.testing.assert_allclose(
        learned(replace(plain, pessimism=same), DATA).policy().values,
        learned(replace(pevi, pessimism=same), DATA).policy().values,
    )


def test_what_is_drawn_has_the_noise_that_is_charged() -> None:
    class Spy(SeededNoise):
        def __init__(self) -> None:
            super().__init__(0)
            self.found: list[tuple[int, float]] = []

        def add_discrete_gaussian(
            self, values: Any, *, standard_deviation: float, **rest: Any
        ) -> Any:
            self.found.append((len(values), standard_deviation))
            return super().add_discrete_gaussian(
                values, standard_deviation=standard_deviation, **rest
            )

    for name, given in CONFIGURATIONS.items():
        settings, spy = settings_of(**given, noise_multiplier=2.5), Spy()
        learned(settings, DATA, spy)
        expected = []
        for index in range(settings.horizon):
            for statistic, release in releases(settings, index).items():
                entries = 21 if "gram" in statistic else 6
                steps = release.sensitivity / release.lattice + math.sqrt(entries)
                expected.append((entries, release.noise_multiplier * steps))
        if name == "centred":  # its bounds are what earlier noisy values allow
            assert len(spy.found) == len(expected)
        else:
            np.testing.assert_allclose(sorted(spy.found), sorted(expected))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_but_noisy_numbers_stays(name: str) -> None:
    class Blind(SeededNoise):
        """Hides its input whole: whatever still depends on the data was never released."""

        def add_discrete_gaussian(self, values: Any, **rest: Any) -> Any:
            return super().add_discrete_gaussian(values * 0, **rest)

    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=2.5)
    seen: list[list[bytes]] = []
    for data in (DATA, DATA.select(range(100)), DATA.select([])):
        states: list[bytes] = []
        learned(
            settings,
            data,
            Blind(3),
            after_step=lambda program, states=states: states.append(pickle.dumps(vars(program))),
        )
        seen.append(states)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_run_goes_on_from_its_tensors(name: str) -> None:
    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=3.0)
    whole = learned(settings, DATA, SeededNoise(5)).tensors()
    group, first = workers_of(settings, DATA), LinearProgram(settings)
    for index in range(2):
        first.step(index, group, SeededNoise(5))
    second = LinearProgram(settings)
    second.restore(first.tensors(), 2)
    for index in range(2, settings.horizon):
        second.step(index, group, SeededNoise(5))
    for key, tensor in second.tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), whole[key].numpy())


def test_other_tensors_are_refused() -> None:
    program = LinearProgram(settings_of())
    with pytest.raises(ConfigError, match="steps_done"):
        program.restore(program.tensors(), 5)
    with pytest.raises(ConfigError, match=r"tensors\['values'\]"):
        program.restore({}, 1)


def test_one_step_one_state_and_one_action() -> None:
    data = trajectories_of([(unit, [(0, 0, 0.75)], 0) for unit in range(99)])
    for given in CONFIGURATIONS.values():
        settings = LinearSettings(
            **{**given, "pessimism": Pessimism(constant=0)},
            features=one_hot(1, 1),
            horizon=1,
            units=99,
        )
        policy = learned(settings, data).policy()
        assert policy.actions.tolist() == [[0]]
        units = 99 - variance_half(data.unit_ids).sum() if settings.halves else 99
        towards = 0.5 if settings.centre_values else 0.0
        expected = towards + (0.75 - towards) * units / (units + 1)
        assert policy.values[0, 0] == pytest.approx(expected)
        noisy = replace(settings, noise_multiplier=1e-3)
        assert learned(noisy, data, SeededNoise(0)).policy().values[0, 0] == pytest.approx(
            expected, abs=0.01
        )


def test_one_state_has_no_spread_and_still_a_release() -> None:
    data = trajectories_of([(unit, [(0, unit % 2, unit % 2)] * 3, 0) for unit in range(50)])
    settings = LinearSettings(
        features=one_hot(1, 2),
        horizon=3,
        units=50,
        split=False,
        centre_values=True,
        early_termination=False,
        noise_multiplier=0.1,
    )
    assert learned(settings, data, SeededNoise(0)).policy().actions.tolist() == [[1]] * 3


def test_ties_go_to_the_lowest_action_and_nothing_seen_is_worth_nothing() -> None:
    policy = learned(settings_of(), DATA.select([])).policy()
    assert not policy.actions.any()
    assert not policy.values.any()


@pytest.mark.parametrize("low", [-1.0, -0.25, 0.0])
def test_rewards_of_another_range_are_scaled_and_scaled_back(low: float) -> None:
    """Ending early is worth 0 in the rewards' own units: going on at a loss is worse."""
    episodes = [(unit, [(0, 0, low)] * 4, 0) for unit in range(400)]
    episodes += [(unit, [(0, 1, low / 2)], 0) for unit in range(400, 800)]
    data = trajectories_of(episodes, terminated=[unit >= 400 for unit in range(800)])
    settings = LinearSettings(
        features=one_hot(1, 2),
        horizon=4,
        units=800,
        reward_range=(low, 1.0),
        pessimism=Pessimism(constant=0),
        ridge=Ridge(penalty=1e-9),
    )
    policy = learned(settings, data).policy()
    # from the last step on: end (low / 2) or go on (low), until the end is ahead anyway
    np.testing.assert_allclose(policy.values[0, 0], low / 2, atol=1e-6)
    assert policy.actions[0, 0] == (1 if low < 0 else 0)


def test_centring_changes_nothing_but_where_the_ridge_pulls() -> None:
    tiny = Ridge(penalty=1e-9)
    plain = settings_of(split=False, ridge=tiny, pessimism=Pessimism(constant=0.01))
    values = learned(plain, DATA).policy().values
    centred = learned(replace(plain, centre_values=True), DATA).policy().values
    np.testing.assert_allclose(centred, values, atol=1e-6)


def test_centring_lowers_the_noise_to_the_spread_of_the_values(drawn: list[Drawn]) -> None:
    found = []
    for centred in (False, True):
        drawn.clear()
        settings = settings_of(
            method="pevi", noise_multiplier=1e-3, centre_values=centred, early_termination=False
        )
        private = replace(settings, pessimism=Pessimism(constant=1e-4))
        values = learned(private, DATA, SeededNoise(0))
        spread = np.ptp(values.policy().values[:, :], axis=1).max()
        found.append((max(one.deviation for one in drawn), spread))
    unit = 1e-3 * math.sqrt(2)
    assert found[0][0] == pytest.approx(2 * 4 * unit, rel=1e-4)
    assert found[1][0] <= (1 + found[1][1]) * unit * 1.001
    assert found[1][0] < found[0][0] / 3


def test_a_pooled_matrix_is_the_own_one_where_every_step_sees_the_same() -> None:
    episode = [(0, 0, 0.2), (0, 0, 0.2), (0, 0, 0.2)]
    other = [(1, 1, 0.7), (1, 1, 0.7), (1, 1, 0.7)]
    data = trajectories_of([(0, episode, 0), (1, other, 1), (2, other, 1)])
    given = {"features": one_hot(2, 2), "horizon": 3, "units": 3, "method": "pevi"}
    own = learned(LinearSettings(**given), data).policy()
    pooled = learned(LinearSettings(**given, pool_grams=True), data).policy()
    np.testing.assert_allclose(pooled.values, own.values)


def test_block_features_learn_what_the_same_features_written_out_do() -> None:
    psi = np.random.default_rng(0).normal(size=(3, 2)) / 3
    phi = np.zeros((3, 2, 4))
    phi[:, 0, :2] = phi[:, 1, 2:] = psi
    for name in ("split", "pooled"):
        given = {**CONFIGURATIONS[name], "pessimism": Pessimism(constant=0.1)}
        blocks = settings_of(**given, features=FeatureMap(table=psi, actions=2))
        whole = settings_of(**given, features=FeatureMap(table=phi))
        one, two = learned(blocks, DATA).policy(), learned(whole, DATA).policy()
        np.testing.assert_allclose(one.values, two.values, atol=1e-9)
        noisy = replace(blocks, noise_multiplier=1.0)
        learned(noisy, DATA, SeededNoise(0))


def test_noisy_matrices_become_positive_definite() -> None:
    features = one_hot(2, 2)
    gram = np.diag([3.0, 1.0, -2.0, -4.0])[None]
    plain = regression(features, gram, Ridge(projection=False))
    np.testing.assert_allclose(np.diag(plain.inverse[0]), [1 / 4, 1 / 2, -1, -1 / 3])
    projected = regression(features, gram, Ridge())
    np.testing.assert_allclose(np.diag(projected.inverse[0]), [1 / 4, 1 / 2, 1, 1])
    matched = regression(features, gram, Ridge(noise_factor=0.5), noise=3.0)
    np.testing.assert_allclose(np.diag(matched.inverse[0]), [1 / 10, 1 / 8, 1 / 7, 1 / 7])
    shifted = regression(features, gram, Ridge(shift=True), noise=3.0, matrices=2, failure=0.5)
    shift = noise_shift(3.0, 4, matrices=2, failure=0.5)
    np.testing.assert_allclose(1 / shifted.inverse[0, 2, 2], 1 + shift)
    np.testing.assert_allclose(projected.uncertainty(), np.sqrt([[1 / 4, 1 / 2], [1, 1]]))
    np.testing.assert_allclose(projected.sensitivity_to_noise(), [[1 / 4, 1 / 2], [1, 1]])
    singular = regression(features, np.diag([1.0, 0, 0, -1])[None], Ridge(projection=False))
    assert np.isfinite(singular.inverse).all()


@pytest.mark.parametrize("width", [2, 10, 40])
def test_the_shift_bounds_the_noise_and_is_no_wild_guess(width: int) -> None:
    rng = np.random.default_rng(width)
    z = rng.normal(size=(500, width, width))
    smallest = np.linalg.eigvalsh((z + z.transpose(0, 2, 1)) / math.sqrt(2)).min(axis=1)
    bound = noise_shift(1.0, width, matrices=500, failure=0.1)
    assert -smallest.min() <= bound <= 3 * -smallest.min()


def test_penalties_count_the_noise_where_asked() -> None:
    plain = settings_of(method="pevi", noise_multiplier=3.0, pessimism=Pessimism(constant=0.0))
    wary = replace(plain, pessimism=Pessimism(constant=0.0, noise_constant=1.0))
    assert (
        learned(wary, DATA, SeededNoise(1)).policy().values[-2]
        < learned(plain, DATA, SeededNoise(1)).policy().values[-2]
    ).all()
    free = replace(wary, noise_multiplier=None)
    np.testing.assert_array_equal(
        learned(free, DATA).policy().values,
        learned(replace(plain, noise_multiplier=None), DATA).policy().values,
    )


def test_the_theory_s_constants() -> None:
    vapvi = theory_pessimism("vapvi", dimension=10, horizon=20)
    assert vapvi == Pessimism(constant=1.0, offset=2 * 20**3 * math.sqrt(10))
    private = theory_pessimism("vapvi", dimension=10, horizon=20, rho=2.0, coverage=0.5)
    noisy_sums, noisy_grams = math.sqrt(20**3 * 10 / 2), math.sqrt(20 * 10 / 2)
    assert private.offset == pytest.approx(
        vapvi.offset + 400 * noisy_sums / 0.5 + 20**4 * noisy_grams * math.sqrt(10) / 0.5**1.5
    )
    assert theory_pessimism("pevi", dimension=10, horizon=20, rho=1.0).offset == 0
    with pytest.raises(ConfigError, match="coverage"):
        theory_pessimism("vapvi", dimension=10, horizon=20, rho=1.0, coverage=0.0)
    assert noise_multiplier_of_rho(2.5, 20) == 2.0


@pytest.mark.parametrize("centred", [False, True])
def test_a_largest_return_bounds_values_and_noise(centred: bool) -> None:
    plain = settings_of(split=False, noise_multiplier=2.5, centre_values=centred)
    plain = replace(plain, pessimism=Pessimism(constant=0.0))
    settings = replace(plain, largest_return=3.0, reward_range=(0.0, 2.0))
    factor = 1 if centred else 2
    for index, ahead in enumerate((0, 1, 1.5, 1.5)):
        found = releases(settings, index)[Statistic.TARGETS].sensitivity
        assert found == pytest.approx(factor * (ahead + 1))
    values = learned(settings, DATA, SeededNoise(0)).policy().values
    assert 1.0 < values.max() <= 3.0
    assert learned(plain, DATA, SeededNoise(0)).policy().values.max() <= 4
    with pytest.raises(ConfigError, match="lowest reward of 0"):
        settings_of(largest_return=1.0, reward_range=(-1.0, 1.0))
    with pytest.raises(ConfigError, match="largest_return must be"):
        settings_of(largest_return=0.0)


def test_what_does_not_go_together_is_refused() -> None:
    group = workers_of(settings_of(), DATA)
    with pytest.raises(UnsafeError, match="go together"):
        LinearProgram(settings_of()).step(0, group, SeededNoise(0))
    with pytest.raises(UnsafeError, match="go together"):
        LinearProgram(settings_of(noise_multiplier=1.0)).step(0, group, None)
    with pytest.raises(ConfigError, match="index must be 0"):
        LinearProgram(settings_of()).step(1, group, None)
    with pytest.raises(ConfigError, match="noise_multiplier must be given"):
        releases(settings_of(), 0)
    with pytest.raises(ConfigError, match="index must lie"):
        releases(settings_of(noise_multiplier=1.0), 4)
    for given, words in (
        ({"reuse_gram": True}, "split=True"),
        ({"reuse_gram": True, "method": "pevi", "split": False}, "method=pevi"),
        ({"pool_grams": True}, "pool_grams needs"),
        ({"reward_range": (0.5, 1.0)}, "must hold 0"),
        ({"reward_range": (1.0, 0.0)}, "reward_range"),
        ({"horizon": 0}, "horizon"),
        ({"units": 0}, "units"),
        ({"failure": 0.0}, "failure"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ):
        with pytest.raises(ConfigError, match=words):
            settings_of(**given)
    for part in (
        lambda: Shares(gram=0.0),
        lambda: Ridge(penalty=0.0),
        lambda: Ridge(noise_factor=-1.0),
        lambda: Pessimism(constant=-1.0),
        lambda: Pessimism(offset=math.nan),
    ):
        with pytest.raises(ConfigError):
            part()


def test_statistics_are_named_as_their_shares() -> None:
    assert {part.value for part in Statistic} == set(Shares.__dataclass_fields__)


class WorkerSpy:
    """Passes calls on, and remembers their arguments."""

    def __init__(self, group: Any) -> None:
        self.group, self.calls = group, []

    def call(self, method: str, shared: Any) -> Any:
        self.calls.append((method, shared))
        return self.group.call(method, shared)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ["unsplit", "centred"])
def test_noise_covers_what_workers_are_asked_to_sum_and_no_more(
    name: str, early: bool, drawn: list[Drawn]
) -> None:
    mdp = random_mdp(3, 2, 6, np.random.default_rng(0))
    given = {**CONFIGURATIONS[name], "early_termination": early, "noise_multiplier": 1e-3}
    settings, noise = settings_of(mdp, **given), SeededNoise(0)
    data = sampled(mdp, 300, seed=1)
    spy, program = WorkerSpy(workers_of(settings, data)), LinearProgram(settings)
    tags = {statistic: tag for tag, statistic in enumerate(Statistic)}
    for index in range(mdp.horizon):
        before = len(spy.calls)
        program.step(index, spy, noise)  # type: ignore[arg-type]
        for method, arguments in spy.calls[before:]:
            ends = [arguments["end_value"]] if early else []
            assert (arguments["end_value"] is not None) is early
            ahead = np.array([*arguments["next_values"], *ends])
            if name == "unsplit":  # the largest there could be, whatever was found
                ahead = np.array([0.0, index])
            bounds = {Statistic.TARGETS: np.abs([ahead, ahead + 1]).max()}
            if method == "variance_statistics":
                bounds = {Statistic.VALUES: np.abs(ahead).max()}
                bounds[Statistic.SQUARES] = bounds[Statistic.VALUES] ** 2
            count = 5 if len(spy.calls) - before == 2 else 2
            for statistic, bound in bounds.items():
                expected = 2 * bound * 1e-3 * math.sqrt(count)
                tag = len(tags) * index + tags[statistic]
                (found,) = (one.deviation for one in drawn if one.tag == tag)
                assert found == pytest.approx(expected, rel=3e-5)
    assert (len(spy.calls) > mdp.horizon) is (early or name == "unsplit")


@pytest.mark.parametrize("name", ["unsplit", "pooled"])
def test_the_ridge_is_told_the_noise_of_its_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def spy(*args: Any, noise: float, **rest: Any) -> Any:
        told.append(noise)
        return regression(*args, noise=noise, **rest)

    monkeypatch.setattr("distributed_privrl.methods.value_iteration.linear.regression", spy)
    settings = settings_of(**CONFIGURATIONS[name], noise_multiplier=3.0)
    learned(settings, DATA, SeededNoise(0))
    # beside the diagonal: sqrt 2 z / sqrt(share) / sqrt 2, and averaged
    own = [3 * math.sqrt(2)] + [3 * math.sqrt(4 if name == "pooled" else 5)] * 3
    if name == "pooled":
        expected = [math.hypot(*own[: count + 1]) / (count + 1) for count in range(4)]
    else:
        expected = [own[0]] + own[1:] * 2
    np.testing.assert_allclose(told, expected, rtol=3e-5)
    told.clear()
    learned(replace(settings, noise_multiplier=None), DATA)
    assert told == [0.0] * len(expected)
