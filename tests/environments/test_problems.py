import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, MissingExtraError, StorageError
from distributed_privrl.environments import sepsis
from distributed_privrl.environments.problems import (
    PROBLEMS,
    gridworld,
    icu_sepsis,
    icu_sepsis_features,
    linear_mdp,
    random_mdp,
    tabular_problem,
)
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    uniform_policy,
)

Instance = Literal["a", "b"]
INSTANCES: tuple[Instance, ...] = ("a", "b")
SEPSIS = "privrl/ICU-Sepsis-v0"
UP, RIGHT = 0, 1


def optimal_value(mdp: TabularMdp, horizon: int | None = None) -> float:
    return float(mdp.initial @ optimal_policy(mdp, horizon=horizon)[1][0])


def reference_values(mdp: TabularMdp, horizon: int) -> list[float]:
    policies = (uniform_policy(mdp), mdp.behaviour)
    exact = [policy_value(mdp, policy, horizon=horizon) for policy in policies]
    return [*exact, optimal_value(mdp, horizon)]


@pytest.mark.parametrize("environment", list(PROBLEMS))
def test_a_problem_is_built_once_and_its_behaviour_can_be_improved(environment: str) -> None:
    mdp = tabular_problem(environment)
    assert mdp is not None
    assert tabular_problem(environment) is mdp
    assert mdp.horizon == 20
    low, high = mdp.reward_range
    assert 0 <= low < high <= 1
    assert policy_value(mdp, mdp.behaviour) < optimal_value(mdp)


def test_another_id_is_no_problem() -> None:
    assert tabular_problem("privrl/Maze2D-umaze-v0") is None
    assert tabular_problem("nonsense") is None


def test_importing_environments_imports_no_simulator() -> None:
    code = (
        "import sys, distributed_privrl.environments\n"
        "heavy = {'mujoco', 'gym', 'icu_sepsis', 'torch', 'scipy', 'pandas'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("instance", INSTANCES)
def test_the_linear_mdp_is_linear_in_its_features_at_every_step(instance: Instance) -> None:
    mdp = linear_mdp(instance)
    assert mdp.features is not None
    features = mdp.features.reshape(-1, 10)
    assert np.linalg.matrix_rank(features) == 9
    for step in range(20):
        for target in (mdp.rewards[step].ravel(), *mdp.transitions[step].reshape(-1, 2).T):
            weights = np.linalg.lstsq(features, target, rcond=None)[0]
            np.testing.assert_allclose(features @ weights, target, atol=1e-13)
        # measures weigh the last two features alone: which bits an action has is of no matter
        same = np.round(features[:, 8], 9) > 0
        assert np.ptp(mdp.transitions[step].reshape(-1, 2)[same], axis=0).max() < 1e-13
        assert np.ptp(mdp.transitions[step].reshape(-1, 2)[~same], axis=0).max() < 1e-13


def test_features_of_the_linear_mdp_by_hand() -> None:
    features = linear_mdp().features
    assert features is not None
    tripled = 3 * features
    np.testing.assert_allclose(tripled[0, 0], [-1] * 8 + [1, 0])
    np.testing.assert_allclose(tripled[1, 0], [-1] * 8 + [0, 1])
    np.testing.assert_allclose(tripled[0, 5], [1, -1, 1, -1, -1, -1, -1, -1, 0, 1])
    np.testing.assert_allclose(tripled[1, 99], [1, 1, -1, -1, -1, 1, 1, -1, 1, 0])
    np.testing.assert_allclose(np.linalg.norm(features, axis=-1), 1)


@pytest.mark.parametrize(("instance", "value"), [("a", 15.92), ("b", 14.35)])
def test_the_linear_mdp_is_stochastic_and_changes(instance: Instance, value: float) -> None:
    mdp = linear_mdp(instance)
    assert 0 < mdp.transitions.min() < mdp.transitions.max() < 1
    assert 0 < mdp.rewards.min() < mdp.rewards.max() < 1
    assert len(np.unique(mdp.rewards[:, 0, 1])) == 20
    assert optimal_value(mdp) == pytest.approx(value, abs=0.01)
    greedy = policy_value(mdp, mdp.rewards.argmax(axis=-1))
    assert greedy < value - 0.3, "looking one step ahead must not be enough"
    np.testing.assert_allclose(mdp.behaviour[0, :, 0], 0.6)
    np.testing.assert_allclose(mdp.behaviour[0, :, 1:], 0.4 / 99)
    assert not np.array_equal(linear_mdp("a").rewards, linear_mdp("b").rewards)


def test_a_shorter_linear_mdp_is_a_beginning() -> None:
    np.testing.assert_array_equal(linear_mdp("b", 7).rewards, linear_mdp("b").rewards[:7])
    np.testing.assert_array_equal(linear_mdp("b", 7).transitions, linear_mdp("b").transitions[:7])


def test_wrong_linear_mdps_are_refused() -> None:
    with pytest.raises(ConfigError, match="instance must be a or b, got 'c'"):
        linear_mdp("c")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="horizon must be at least 1, got 0"):
        linear_mdp("a", 0)


def test_a_gridworld_by_hand() -> None:
    mdp = gridworld(["SG"], slip=0.2, horizon=2)
    assert (mdp.states, mdp.actions) == (3, 4)
    np.testing.assert_allclose(mdp.transitions[0, 0, RIGHT], [0.2, 0.8, 0])
    np.testing.assert_allclose(mdp.transitions[0, 0, UP], [0.9, 0.1, 0])
    np.testing.assert_allclose(mdp.transitions[0, 1], [[0, 0, 1]] * 4)
    assert optimal_value(mdp) == pytest.approx(0.8 + 0.2 * 0.8)
    assert policy_value(mdp, uniform_policy(mdp), horizon=1) == pytest.approx(0.25)
    np.testing.assert_allclose(mdp.behaviour[0, 0], [0.125, 0.625, 0.125, 0.125])


def test_walls_block_and_pits_end() -> None:
    mdp = gridworld(["S#", "PG"], slip=0.0, horizon=9)
    assert (mdp.states, mdp.terminal.tolist()) == (4, [False, True, True, True])
    assert mdp.transitions[0, 0, RIGHT].tolist() == [1, 0, 0, 0]
    assert optimal_value(mdp) == 0.0
    assert optimal_value(gridworld(["S.", "PG"], slip=0.0)) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": ["S.", "G"]}, "rows must be equally long"),
        ({"rows": ["Sx"]}, "of S, G, P, # and"),
        ({"rows": ["..G"]}, "rows must have a start"),
        ({"rows": []}, "rows must be equally long"),
        ({"slip": 1.5}, "slip must lie in"),
        ({"exploration": 0.0}, "exploration must lie in"),
        ({"horizon": 0}, "horizon must be at least 1"),
    ],
)
def test_wrong_gridworlds_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gridworld(**arguments)  # type: ignore[arg-type]


def test_random_mdps_come_from_their_generator() -> None:
    first, again, other = (random_mdp(4, 3, 2, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.transitions, again.transitions)
    assert not np.array_equal(first.rewards, other.rewards)
    assert first.transitions.shape == (2, 4, 3, 4)
    for name in ("states", "actions", "horizon"):
        sizes = {"states": 2, "actions": 2, "horizon": 2, name: 0}
        with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
            random_mdp(**sizes, generator=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("horizon", "survival"), [(200, [0.780, 0.782, 0.875]), (20, [0.685, 0.692, 0.792])]
)
def test_survival_in_icu_sepsis_is_what_its_authors_say(
    horizon: int, survival: list[float]
) -> None:
    mdp = tabular_problem(SEPSIS)
    assert mdp is not None
    assert reference_values(mdp, horizon) == pytest.approx(survival, abs=1e-3)


def test_icu_sepsis_is_the_packages() -> None:
    mdp = tabular_problem(SEPSIS)
    assert mdp is not None
    spec = importlib.util.find_spec("icu_sepsis")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "envs" / "assets" / "dynamics.npz"
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(mdp.transitions[0], arrays["tx_mat"])
        np.testing.assert_array_equal(mdp.initial, arrays["d_0"])
        np.testing.assert_array_equal(mdp.behaviour[0, :713], arrays["expert_policy"][:713])
    assert np.flatnonzero(mdp.terminal).tolist() == [713, 714, 715]
    assert np.flatnonzero(mdp.arrival_rewards).tolist() == [714]
    assert icu_sepsis(7).transitions.base is mdp.transitions.base, "the large array is shared"


def test_features_of_icu_sepsis_are_short_and_zero_at_the_end() -> None:
    features = icu_sepsis_features()
    assert features.shape == (716, 48)
    norms = np.linalg.norm(features, axis=1)
    assert norms[:713].max() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(features[:713, 0], np.sqrt(0.5))
    assert not features[713:].any()
    assert np.linalg.matrix_rank(features) == 48


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    sepsis._dynamics.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (icu_sepsis, icu_sepsis_features):
        with pytest.raises(MissingExtraError, match=r"icu-sepsis.*\[envs\]"):
            call()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", b"\x93NUMPY"])
def test_a_damaged_file_is_an_error_of_storage(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "icu_sepsis" / "envs" / "assets"
    assets.mkdir(parents=True)
    (assets / "dynamics.npz").write_bytes(content)
    (tmp_path / "icu_sepsis" / "__init__.py").touch()
    sepsis._dynamics.cache_clear()
    spec = importlib.util.spec_from_file_location(
        "icu_sepsis",
        tmp_path / "icu_sepsis" / "__init__.py",
        submodule_search_locations=[str(tmp_path / "icu_sepsis")],
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(StorageError, match="install icu-sepsis again"):
        icu_sepsis()


def test_other_dynamics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sepsis._dynamics.cache_clear()
    small = [np.ones((2, 1, 2)), np.ones((2, 1, 2)), np.ones(2), np.ones((2, 1))]
    monkeypatch.setattr(sepsis, "_arrays", lambda *names: small)
    with pytest.raises(StorageError, match=r"install icu-sepsis 2\.0\.1"):
        icu_sepsis()


def test_every_reward_of_the_linear_mdp_is_reached_by_its_formula() -> None:
    """Rewards are a part of delta and a part of the bits, added: a rectangle of them closes."""
    rewards = linear_mdp("a").rewards
    for left, right in itertools.combinations((1, 2, 3, 77, 99), 2):
        np.testing.assert_allclose(
            rewards[:, 0, left] - rewards[:, 0, right],
            rewards[:, 1, left] - rewards[:, 1, right],
            atol=1e-13,
        )


def test_the_tables_of_the_documentation_are_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    number = r"(\d+\.\d{3})"
    rows = re.findall(
        rf"^\| `(privrl/\S+)` \| (\d+) \| (\d+) \| {number} \| {number} \| {number} \|$", text, re.M
    )
    assert {row[0] for row in rows} == set(PROBLEMS)
    for environment, states, actions, *values in rows:
        mdp = tabular_problem(environment)
        assert mdp is not None
        assert (mdp.states, mdp.actions) == (int(states), int(actions))
        assert [f"{value:.3f}" for value in reference_values(mdp, 20)] == values
    mdp = tabular_problem(SEPSIS)
    assert mdp is not None
    rows = re.findall(rf"^\| (\d+) \| {number} \| {number} \| {number} \|$", text, re.M)
    assert [int(horizon) for horizon, *_ in rows] == [20, 50, 200]
    for horizon, *values in rows[:2]:
        assert [f"{value:.3f}" for value in reference_values(mdp, int(horizon))] == values
    for instance in INSTANCES:
        linear = linear_mdp(instance)
        greedy = policy_value(linear, linear.rewards.argmax(axis=-1))
        assert f"{greedy:.2f} in {'instance a' if instance == 'a' else 'b'}" in text
