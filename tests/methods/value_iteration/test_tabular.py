"""DP-APVI: APVI without noise, the optimal policy with many trajectories, nothing private kept."""

import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.value_iteration.counts import CountLayout
from distributed_privrl.methods.value_iteration.pessimism import Pessimism
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import Relation
from tests.methods.value_iteration.tabular_data import (
    RandomProblem,
    SpyNoise,
    start,
    trajectories_of,
)

S, A, H = 4, 3, 3
RANGE = (-1.0, 3.0)


def learn(settings: TabularSettings, trajectories, *, noise=None, workers: int = 1):
    program = TabularProgram(settings)
    group = start(trajectories, settings.layout, workers)
    for index in range(program.steps):
        program.step(index, group, noise)
    return program.policy()


def messy_paths(count: int, low: float, high: float):
    """Trajectories of all lengths, some too long, some with rows that are malformed."""
    generator = np.random.default_rng(11)
    for _ in range(count):
        length = int(generator.integers(0, H + 3))
        steps = [
            (int(s), int(a), float(r))
            for s, a, r in zip(
                generator.choice([0, 0, 1, 2, 9], length, p=[0.3, 0.2, 0.2, 0.25, 0.05]),
                generator.integers(0, A, length),
                generator.uniform(low - 1, high + 1, length),
                strict=True,
            )
        ]
        yield steps, int(generator.integers(S)), bool(generator.random() < 0.5)


def steps_of(paths, layout: CountLayout):
    """Yield (time, state, action, clipped reward, next state, ended) of what counts."""
    low, high = layout.reward_range
    for steps, final, ended in paths:
        states = [*(row[0] for row in steps), final]
        for t, (state, action, reward) in enumerate(steps[: layout.horizon]):
            if max(state, states[t + 1]) < S:
                over = ended and t == len(steps) - 1 and layout.terminal is None
                clipped = min(max(float(np.float32(reward)), low), high)
                yield t, state, action, clipped, states[t + 1], over


def rows_of_first_visits(paths, layout: CountLayout, group: list[int]):
    rows = []
    for path in paths:
        seen = set()
        for row in steps_of([path], layout):
            pair = group[row[1]], row[2]
            if pair not in seen:
                rows.append(row)
            seen.add(pair)
    return rows


def naive_gamma(reached: list[float], iota: float, width: float, settings: TabularSettings):
    """Return the penalty of APVI for the values that were reached from one pair."""
    p, n = settings.pessimism, len(reached)
    if n == 0:
        return p.unvisited_constant * H * width
    if p.kind == "hoeffding":
        gamma = p.variance_constant * H * width * math.sqrt(iota / n)
    else:
        variance = sum((x - sum(reached) / n) ** 2 for x in reached) / n
        gamma = p.variance_constant * math.sqrt(variance * iota / n)
        gamma += p.sampling_constant * H * width * iota / n
    if settings.rewards is None:
        gamma += p.variance_constant * width / 2 * math.sqrt(iota / n)
    return gamma


def naive_apvi(paths, settings: TabularSettings):
    """APVI, written out over lists; the reward range is widened to hold 0 if episodes can end."""
    layout = settings.layout
    low, high = layout.reward_range
    terminal = [False] * S if layout.terminal is None else layout.terminal.tolist()
    group = list(range(S)) if layout.clusters is None else layout.clusters.tolist()
    size = max(group) + 1
    floor, roof = low, high
    if layout.terminal is None or any(terminal):
        floor, roof = min(low, 0.0), max(high, 0.0)
    iota = math.log(H * size * A / settings.pessimism.failure_probability)

    def mean_over(values):
        members = [[v for v, g in zip(values, group, strict=True) if g == k] for k in range(size)]
        return [sum(m) / len(m) for m in members]

    arrival = [0.0] * S if settings.arrival_rewards is None else settings.arrival_rewards.tolist()
    arrival = mean_over(arrival)
    ends = mean_over(terminal)
    rows = list(steps_of(paths, layout))
    if layout.visits == "first":
        rows = rows_of_first_visits(paths, layout, group)
    values = [[0.0] * size for _ in range(H + 1)]
    actions = [[0] * size for _ in range(H)]
    rule = None
    for backup, h in enumerate([*reversed(range(H))] * (1 + settings.stationary)):
        if backup == H:  # once more, with the first step's rule
            rule = list(actions[0])
        future = [v + r for v, r in zip(values[h + 1], arrival, strict=True)]
        for s, a in itertools.product(range(size), range(A)):
            here = [
                (r, 0.0 if over else future[group[y]])
                for t, x, b, r, y, over in rows
                if (group[x], b) == (s, a) and (layout.pooled or t == h)
            ]
            reached = [value for _, value in here]
            mean = sum(reached) / len(reached) if reached else 0.0
            if settings.rewards is None:
                reward = sum(r for r, _ in here) / len(here) if here else low
            else:
                table = settings.rewards if settings.rewards.ndim == 2 else settings.rewards[h]
                reward = mean_over(table[:, a].tolist())[s]
            q = reward + mean - naive_gamma(reached, iota, roof - floor, settings)
            q = min(max(q, (H - h) * floor), (H - h) * roof)
            best = q > values[h][s] + 1e-12 if rule is None else a == rule[s]
            if a == 0 or best:
                values[h][s], actions[h][s] = q, a
        values[h] = [0.0 if e else v for v, e in zip(values[h], ends, strict=True)]
    return np.array(actions)[:, group], np.array(values)[:, group]


def table(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, shape)


NO_END = np.zeros(S, bool)
LAST_ENDS = np.array([False, False, False, True])
CASES = {
    "ended successor": ({}, {"rewards": table(0, S, A)}),
    "no end": ({"terminal": NO_END}, {"rewards": table(1, H, S, A)}),
    "arrival": (
        {"terminal": LAST_ENDS, "reward_range": RANGE},
        {"rewards": table(2, S, A), "arrival_rewards": np.array([0.0, 0.0, 0.5, 2.0])},
    ),
    "estimated": ({"estimate_reward": True, "reward_range": RANGE}, {}),
    "all positive": (
        {"terminal": NO_END, "reward_range": (2.0, 3.0)},
        {"rewards": 2 + table(3, S, A)},
    ),
    "all negative, ends": ({"reward_range": (-3.0, -2.0)}, {"rewards": -2 - table(4, S, A)}),
    "pooled": (
        {"pooled": True, "estimate_reward": True, "terminal": LAST_ENDS},
        {},
    ),
    "first visits": ({"pooled": True, "visits": "first", "estimate_reward": True}, {}),
    "first visits, clusters": (
        {"pooled": True, "visits": "first", "clusters": np.array([1, 0, 1, 0])},
        {"rewards": table(7, S, A)},
    ),
    "stationary": (
        {"pooled": True, "reward_range": (-3.0, 1.0)},
        {"rewards": table(2, S, A) - 0.5, "stationary": True},
    ),
    "clusters": (
        {"clusters": np.array([1, 0, 1, 2]), "terminal": LAST_ENDS},
        {"rewards": table(5, S, A), "arrival_rewards": np.array([0.0, 0, 0, 0])},
    ),
    "pooled clusters, rewards by time": (
        {"clusters": np.array([1, 0, 1, 0]), "pooled": True},
        {"rewards": table(6, H, S, A)},
    ),
}
# Small enough that the learned values are not all cut at the lower end.
MILD = Pessimism(variance_constant=0.05, sampling_constant=0.01)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["bernstein", "hoeffding"])
@pytest.mark.parametrize("workers", [1, 3])
def test_without_noise_it_is_apvi(name, kind, workers):
    layout, rest = CASES[name]
    settings = TabularSettings(
        layout=CountLayout(states=S, actions=A, horizon=H, **layout),
        pessimism=replace(MILD, kind=kind),
        **rest,
    )
    paths = list(messy_paths(60, *settings.layout.reward_range))
    if settings.layout.terminal is not None:
        # A flag says nothing where the states that end an episode are declared.
        paths = [(steps, final, False) for steps, final, _ in paths]
    policy = learn(settings, trajectories_of(paths), workers=workers)
    actions, values = naive_apvi(paths, settings)
    assert policy.values == pytest.approx(values, abs=2e-9)
    assert np.array_equal(policy.actions, actions)
    assert len(np.unique(values[:-1].round(9))) > 3


@pytest.mark.parametrize("name", CASES)
def test_tiny_noise_comes_close_to_apvi(name):
    layout, rest = CASES[name]
    layout = CountLayout(states=S, actions=A, horizon=H, **layout)
    settings = TabularSettings(layout=layout, pessimism=MILD, **rest)
    data = trajectories_of(list(messy_paths(60, *layout.reward_range)))
    private = replace(settings, noise=layout.sensitivities(Relation.REPLACE_ONE).gaussian(1e16))
    noisy = learn(private, data, noise=SeededNoise(0))
    assert noisy.values == pytest.approx(learn(settings, data).values, abs=1e-3)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("preset", ["theory", "practical", "none"])
def test_many_trajectories_give_the_optimal_policy(kind, preset):
    problem = RandomProblem.draw(3, 2, 3, seed=4)
    layout = CountLayout(states=3, actions=2, horizon=3, terminal=np.zeros(3, bool))
    # The theory's constants need far more data for the same result: fewer counts' worth of noise.
    budget = {"theory": 2e5, "practical": 2.0, "none": 2.0}[preset]
    settings = TabularSettings(
        layout=layout,
        rewards=problem.rewards,
        pessimism=Pessimism.preset(preset),
        noise=getattr(layout.sensitivities(Relation.REPLACE_ONE), kind)(budget),
    )
    best = problem.value()

    def gap(count: int) -> float:
        policy = learn(settings, problem.sample(count, seed=5), noise=SeededNoise(1))
        if preset == "theory":  # the other constants bound nothing
            assert policy.values[0].mean() <= best
        return best - problem.value(policy.actions)

    assert gap(100_000) < 0.005
    assert best - problem.value(np.ones((3, 3), np.int64)) > 0.05  # not every policy is good


def noisy_settings(layout: CountLayout, kind: str = "gaussian") -> TabularSettings:
    return TabularSettings(
        layout=layout,
        rewards=None if layout.estimate_reward else table(0, layout.states, layout.actions),
        pessimism=Pessimism.preset("practical"),
        noise=getattr(layout.sensitivities(Relation.REPLACE_ONE), kind)(5.0),
    )


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("pooled", [False, True])
def test_the_same_result_for_any_number_of_workers(kind, pooled):
    layout = CountLayout(states=S, actions=A, horizon=H, estimate_reward=True, pooled=pooled)
    data = trajectories_of(list(messy_paths(300, 0, 1)))
    results = [
        learn(noisy_settings(layout, kind), data, noise=SeededNoise(3), workers=workers)
        for workers in (1, 2, 4)
    ]
    for other in results[1:]:
        assert np.array_equal(results[0].actions, other.actions)
        assert np.array_equal(results[0].values, other.values)
        assert np.array_equal(results[0].penalties, other.penalties)


class DeafNoise(SeededNoise):
    """Noise so large that the values under it are gone."""

    def add_discrete_gaussian(self, values, **arguments):
        return super().add_discrete_gaussian(np.zeros_like(values), **arguments)


@pytest.mark.parametrize("pooled", [False, True])
def test_nothing_that_was_not_noised_is_kept(pooled):
    layout = CountLayout(states=S, actions=A, horizon=H, estimate_reward=True, pooled=pooled)
    states = []
    for paths in (list(messy_paths(300, 0, 1)), [([(0, 0, 1.0)] * 3, 0, False)] * 40, []):
        program = TabularProgram(noisy_settings(layout))
        program.step(0, start(trajectories_of(paths), layout), DeafNoise(3))
        states.append(pickle.dumps(vars(program)))
    # If all that the noise hides is hidden, three very different datasets leave the same state.
    assert states[0] == states[1] == states[2]


def test_a_stationary_policy_has_the_first_steps_rule_and_that_rules_values():
    layout = CountLayout(states=S, actions=A, horizon=H, pooled=True, terminal=NO_END)
    settings = replace(noisy_settings(layout), stationary=True)
    data = trajectories_of(list(messy_paths(300, 0, 1)))
    by_time = learn(noisy_settings(layout), data, noise=SeededNoise(0))
    stationary = learn(settings, data, noise=SeededNoise(0))
    assert len(np.unique(by_time.actions, axis=0)) > 1
    assert np.array_equal(stationary.actions, np.tile(by_time.actions[0], (H, 1)))
    assert (stationary.values <= by_time.values + 1e-12).all()
    assert (stationary.values < by_time.values - 1e-6).any()
    spy = SpyNoise()
    learn(settings, data, noise=spy)
    assert len(spy.calls) == 1  # nothing more is released for it


def test_every_cell_is_noised_visited_or_not():
    layout = CountLayout(states=S, actions=A, horizon=H)
    spy = SpyNoise()
    learn(noisy_settings(layout), trajectories_of([]), noise=spy)
    assert [call["dimension"] for call in spy.calls] == [S * A * (S + 1) + S * A] * H
    assert [call["tag"] for call in spy.calls] == [0, 1, 2]


def test_a_resumed_run_equals_an_uninterrupted_one():
    layout = CountLayout(states=S, actions=A, horizon=H)
    settings, data = noisy_settings(layout), trajectories_of(list(messy_paths(200, 0, 1)))
    whole = learn(settings, data, noise=SeededNoise(2))
    group, first, second = start(data, layout), TabularProgram(settings), TabularProgram(settings)
    first.step(0, group, SeededNoise(2))
    second.restore(first.tensors(), 1)
    for index in (1, 2):
        second.step(index, group, SeededNoise(2))
    assert np.array_equal(second.policy().values, whole.values)
    assert np.array_equal(second.policy().penalties, whole.penalties)


def test_steps_come_in_order_and_noise_with_its_release():
    layout = CountLayout(states=S, actions=A, horizon=H)
    settings, group = noisy_settings(layout), start(trajectories_of([]), layout)
    program = TabularProgram(settings)
    for broken in (1, -1, H):
        with pytest.raises(ConfigError, match="index"):
            program.step(broken, group, SeededNoise(0))
    with pytest.raises(ConfigError, match="steps are left"):
        program.policy()
    with pytest.raises(UnsafeError, match="go together"):
        program.step(0, group, None)
    with pytest.raises(UnsafeError, match="go together"):
        TabularProgram(replace(settings, noise=None)).step(0, group, SeededNoise(0))
    program.step(0, group, SeededNoise(0))
    with pytest.raises(ConfigError, match="index"):
        program.step(0, group, SeededNoise(0))
    other = TabularProgram(noisy_settings(CountLayout(states=S, actions=A, horizon=H + 1)))
    with pytest.raises(ConfigError, match="actions"):
        other.restore(program.tensors(), 1)
    with pytest.raises(ConfigError, match="steps_done"):
        program.restore(program.tensors(), H + 1)


def test_unvisited_cells_and_ties_take_the_lowest_action():
    layout = CountLayout(states=2, actions=3, horizon=1)
    flat = TabularSettings(layout=layout, rewards=np.full((2, 3), 0.5), pessimism=MILD)
    nothing = learn(flat, trajectories_of([]))
    assert nothing.actions.tolist() == [[0, 0]]
    assert nothing.values.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert nothing.penalties is not None
    assert (nothing.penalties == MILD.unvisited_constant).all()
    tied = learn(flat, trajectories_of([([(0, a, 0.0)], 1, False) for a in (1, 2)]))
    assert tied.actions.tolist() == [[1, 0]]
    assert tied.values[0, 0] == pytest.approx(0.5 - 0.01 * math.log(6 / 0.1))


@pytest.mark.parametrize(
    ("states", "actions", "horizon"),
    [shape for shape in itertools.product((1, 2), repeat=3) if min(shape) == 1],
)
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_smallest_problems(states, actions, horizon, kind):
    layout = CountLayout(states=states, actions=actions, horizon=horizon, estimate_reward=True)
    data = trajectories_of([([(0, 0, 1.0)] * horizon, 0, False)] * 50)
    exact = learn(TabularSettings(layout=layout, pessimism=MILD), data)
    assert 0.7 * horizon < exact.values[0, 0] <= horizon
    noisy = learn(noisy_settings(layout, kind), data, noise=SeededNoise(0))
    assert noisy.actions.shape == (horizon, states)
    assert (noisy.values >= 0).all()
    assert (noisy.values <= horizon).all()


@pytest.mark.parametrize(
    ("layout", "changed", "named"),
    [
        ({}, {}, "rewards"),
        ({"estimate_reward": True}, {"rewards": table(0, S, A)}, "rewards"),
        ({}, {"rewards": table(0, A, S)}, "rewards"),
        ({}, {"rewards": table(0, S, A), "stationary": True}, "pooled"),
        ({}, {"rewards": 3 * np.ones((S, A))}, "reward_range"),
        ({}, {"rewards": np.full((S, A), np.nan)}, "reward_range"),
        ({}, {"rewards": table(0, S, A), "arrival_rewards": np.zeros(S)}, "terminal"),
        (
            {"terminal": NO_END},
            {"rewards": table(0, S, A), "arrival_rewards": np.zeros(S + 1)},
            "arrival_rewards",
        ),
        (
            {"terminal": NO_END},
            {"rewards": np.ones((S, A)), "arrival_rewards": np.ones(S)},
            "reward_range",
        ),
        (
            {"terminal": NO_END, "estimate_reward": True},
            {"arrival_rewards": np.zeros(S)},
            "arrival_rewards",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(layout, changed, named):
    with pytest.raises(ConfigError, match=named):
        TabularSettings(layout=CountLayout(states=S, actions=A, horizon=H, **layout), **changed)
