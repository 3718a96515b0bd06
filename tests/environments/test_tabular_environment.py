import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import environment_spaces
from distributed_privrl.environments.problems import PROBLEMS, gridworld, random_mdp
from distributed_privrl.environments.tabular_environment import TabularEnvironment


@pytest.mark.parametrize("environment", list(PROBLEMS))
def test_gymnasium_accepts_it(environment: str) -> None:
    made = gymnasium.make(environment)
    assert made.spec is not None
    assert made.spec.max_episode_steps == 20
    check_env(made.unwrapped, skip_render_check=True)
    mdp = made.unwrapped.mdp  # type: ignore[attr-defined]
    observations, actions, _ = environment_spaces(environment)
    assert (int(observations.n), int(actions.n)) == (mdp.states, mdp.actions)  # type: ignore[union-attr]
    assert made.unwrapped.reward_range == mdp.reward_range  # type: ignore[attr-defined]


def test_the_seed_decides_everything() -> None:
    environment = gymnasium.make("privrl/RandomMDP-v0")
    runs = []
    for seed in (3, 3, 4):
        run = [environment.reset(seed=seed)[0]]
        run += [environment.step(step % 5)[0] for step in range(20)]
        runs.append([int(state) for state in run])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_rewards_and_ends_are_the_mdps() -> None:
    mdp = gridworld(["SG"], slip=0.5, horizon=4)
    environment = TabularEnvironment(mdp)
    ends = []
    for seed in range(50):
        state, _ = environment.reset(seed=seed)
        assert state == 0
        for step in range(4):
            arrival, reward, terminated, truncated, _ = environment.step(np.int64(1))
            assert reward == float(arrival == 1)
            assert terminated == (arrival == 1)
            assert truncated == (step == 3 and not terminated)
            if terminated or truncated:
                ends.append(terminated)
                break
        with pytest.raises(ConfigError, match="call reset"):
            environment.step(np.int64(1))
    assert 0 < sum(ends) < 50


def test_steps_are_drawn_with_the_mdps_probabilities() -> None:
    mdp = random_mdp(4, 2, 2, np.random.default_rng(0))
    environment = TabularEnvironment(mdp)
    draws = 20_000
    starts, arrivals = np.zeros(4), np.zeros(4)
    environment.reset(seed=0)
    for _ in range(draws):
        starts[environment.reset()[0]] += 1
        environment.reset(options={"state": 2})
        environment.step(np.int64(0))
        # the second step has transitions of its own
        environment._state = 2
        arrivals[environment.step(np.int64(1))[0]] += 1
    for counts, chances in ((starts, mdp.initial), (arrivals, mdp.transitions[1, 2, 1])):
        spread = np.sqrt(draws * chances * (1 - chances))
        assert (np.abs(counts - draws * chances) < 5 * spread).all()
        assert (np.abs(counts - draws * chances) > 0).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1}, r"\['start'\] are unknown \(known: state\)"),
        ({"state": 3}, "state must be a state that goes on, got 3"),
        ({"state": 1}, "state must be a state that goes on, got 1"),
        ({"state": "x"}, "state must be a state that goes on, got 'x'"),
    ],
)
def test_wrong_starts_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TabularEnvironment(gridworld(["SG"])).reset(options=options)


def test_wrong_problems_and_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"problem 'CartPole-v1' is unknown .*ICU-Sepsis"):
        TabularEnvironment("CartPole-v1")
    environment = TabularEnvironment(gridworld(["SG"]))
    with pytest.raises(ConfigError, match="call reset"):
        environment.step(np.int64(0))
    environment.reset(seed=0)
    with pytest.raises(ConfigError, match="got 4"):
        environment.step(4)  # type: ignore[arg-type]
