"""The pessimistic model as an environment: its uncertainties, its steps, its vector form."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn

from benchmarks.model_vector_env import ModelVectorEnv
from distributed_privrl.agents.sac import SacConfig, SacTrainer
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import PLAIN, RowCoding
from distributed_privrl.data.scaling import scaling_from_bounds
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.primorl.model_environment import (
    ModelEnvironment,
    ModelFacts,
    PessimisticModel,
    max_aleatoric,
    max_pairwise_difference,
)
from distributed_privrl.methods.primorl.start_states import PooledStarts

OBSERVATIONS = Box(np.float32([-1, -8]), np.float32([1, 8]))
ACTIONS = Box(np.float32([-2]), np.float32([2]))
DIFFERENCES = RowCoding(next_observation="difference")
BOUNDS = Bounds(
    low=np.array([-1.0, -8.0, -2.0, -16.0]),
    high=np.array([1.0, 8.0, 2.0, 0.0]),
    columns=("observation_0", "observation_1", "action_0", "reward"),
)
CERTAIN = -200.0
"""A log-variance whose deviation is nothing."""


class Members(nn.Module):
    """Members that say the same of every row."""

    def __init__(self, means: list[list[float]], log_variances: list[list[float]]) -> None:
        super().__init__()
        self.means, self.log_variances = torch.tensor(means), torch.tensor(log_variances)
        self.inputs = torch.empty(0)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.inputs = inputs
        shape = (len(self.means), len(inputs), self.means.shape[1])
        return self.means[:, None].expand(shape), self.log_variances[:, None].expand(shape)


def encoder() -> TransitionEncoder:
    scaling = scaling_from_bounds(BOUNDS, OBSERVATIONS, ACTIONS, coding=DIFFERENCES)
    return TransitionEncoder(OBSERVATIONS, ACTIONS, scaling, DIFFERENCES)


def model(ensemble: nn.Module, **options) -> PessimisticModel:
    facts = ModelFacts.of(encoder(), BOUNDS)
    return PessimisticModel(ensemble=ensemble, facts=facts, **options)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_aleatoric_uncertainty_is_the_largest_norm_of_deviations() -> None:
    deviations = torch.tensor([[[3.0, 4.0], [0.1, 0.0]], [[1.0, 1.0], [0.6, 0.8]]])
    found = max_aleatoric(2 * deviations.log())
    torch.testing.assert_close(found, torch.tensor([5.0, 1.0]))


def test_pairwise_difference_is_the_largest_distance_of_means() -> None:
    mean = torch.tensor(
        [[[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]], [[-3.0, -4.0], [1, 3]]]
    )
    torch.testing.assert_close(max_pairwise_difference(mean), torch.tensor([10.0, 2.0]))
    torch.testing.assert_close(max_pairwise_difference(mean[:1]), torch.zeros(2))


def test_steps_are_of_the_encoder_s_rows() -> None:
    """An ensemble that knows the encoded targets gives back the recorded transitions."""
    generator = np.random.default_rng(0)
    before = generator.uniform(OBSERVATIONS.low, OBSERVATIONS.high, (50, 2)).astype(np.float32)
    after = generator.uniform(OBSERVATIONS.low, OBSERVATIONS.high, (50, 2)).astype(np.float32)
    actions = generator.uniform(-2, 2, (50, 1)).astype(np.float32)
    rewards = generator.uniform(-16, 0, 50).astype(np.float32)
    rows = (
        encoder()
        .encode(
            Transitions(
                observations=before,
                actions=actions,
                rewards=rewards,
                next_observations=after,
                terminated=np.zeros(50, bool),
                truncated=np.zeros(50, bool),
                unit_ids=np.arange(50, dtype=np.uint64),
            )
        )
        .rows
    )
    blocks = encoder().layout.blocks

    class Oracle(nn.Module):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            np.testing.assert_allclose(inputs, rows[:, :3], rtol=1e-4, atol=1e-5)
            targets = np.concatenate(
                [rows[:, blocks["next_observation"]], rows[:, blocks["reward"]]], axis=1
            )
            mean = torch.from_numpy(targets)[None]
            return mean, torch.full_like(mean, CERTAIN)

    found = model(Oracle()).step(torch.from_numpy(before), torch.from_numpy(actions), source())
    np.testing.assert_allclose(found[0], after, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], rewards, rtol=1e-4, atol=1e-4)
    assert not found[2].any()


@pytest.mark.parametrize(
    ("penalty", "uncertainty"),
    [("max_aleatoric", math.sqrt(3) * 0.2), ("max_pairwise_difference", 3.0), ("none", 0.0)],
)
def test_the_penalty_lowers_the_reward_alone(penalty: str, uncertainty: float) -> None:
    quiet = 2 * math.log(0.2)
    members = Members([[0.0, 0.0, 0.0], [1.0, -2.0, 2.0]], [[quiet] * 3, [2 * math.log(0.1)] * 3])
    rows = torch.zeros(5, 2), torch.zeros(5, 1)
    plain = model(members, penalty=penalty).step(*rows, source())
    lowered = model(members, penalty=penalty, penalty_weight=0.5).step(*rows, source())
    torch.testing.assert_close(lowered[0], plain[0])
    torch.testing.assert_close(plain[1] - lowered[1], torch.full((5,), 0.5 * uncertainty))


def test_what_follows_stays_inside_the_public_bounds() -> None:
    members = Members([[1e6, -1e6, 1e6]], [[CERTAIN] * 3])
    after, rewards, _ = model(members).step(torch.zeros(3, 2), torch.zeros(3, 1), source())
    assert after.tolist() == [[1.0, -8.0]] * 3
    assert rewards.tolist() == [0.0] * 3


def test_each_row_is_drawn_from_one_member_with_its_deviation() -> None:
    rows = 40_000
    members = Members(
        [[0.3, 0.3, 0.0], [-0.3, -0.3, 0.0]],
        [[2 * math.log(0.02)] * 3, [2 * math.log(0.05)] * 3],
    )
    found = model(members).sample(torch.zeros(rows, 2), torch.zeros(rows, 1), source())
    facts = ModelFacts.of(encoder(), BOUNDS)
    moved = found.next_observations / facts.target_scale[:2]
    first = moved[:, 0] > 0
    # One member moves all columns of a row: 6 standard errors of a fair coin.
    assert ((moved[:, 1] > 0) == first).all()
    assert abs(float(first.float().mean()) - 0.5) < 6 * 0.5 / math.sqrt(rows)
    for chosen, mean, deviation in ((first, 0.3, 0.02), (~first, -0.3, 0.05)):
        np.testing.assert_allclose(moved[chosen].mean(dim=0), mean, atol=0.002)
        np.testing.assert_allclose(moved[chosen].std(dim=0), deviation, rtol=0.03)


def test_a_public_rule_says_what_is_terminal() -> None:
    members = Members([[0.0, 0.0, 0.0]], [[CERTAIN] * 3])
    ruled = model(members, terminates=lambda after: after[:, 0] > 0.5)
    _, _, over = ruled.step(torch.tensor([[0.9, 0.0], [0.1, 0.0]]), torch.zeros(2, 1), source())
    assert over.tolist() == [True, False]


def test_rows_that_no_dynamics_model_can_use_are_refused() -> None:
    plain = TransitionEncoder(OBSERVATIONS, ACTIONS, encoder().scaling, PLAIN)
    with pytest.raises(ConfigError, match="difference"):
        ModelFacts.of(plain, BOUNDS)
    discrete = Bounds(
        low=BOUNDS.low[[0, 1, 3]],
        high=BOUNDS.high[[0, 1, 3]],
        columns=("observation_0", "observation_1", "reward"),
    )
    scaling = scaling_from_bounds(discrete, OBSERVATIONS, Discrete(2), coding=DIFFERENCES)
    with pytest.raises(ConfigError, match="Box"):
        ModelFacts.of(TransitionEncoder(OBSERVATIONS, Discrete(2), scaling, DIFFERENCES), discrete)
    with pytest.raises(ConfigError, match="columns"):
        ModelFacts.of(encoder(), discrete)
    for options in ({"penalty_weight": -1.0}, {"penalty_weight": math.inf}, {"penalty": "other"}):
        with pytest.raises(ConfigError, match="penalty"):
            model(Members([[0.0] * 3], [[0.0] * 3]), **options)


def environment(reward: float = 0.0) -> ModelEnvironment:
    """Observations move by noise; rewards are one number."""
    members = Members([[0.0, 0.0, reward]] * 2, [[-4.0, -4.0, CERTAIN]] * 2)
    starts = PooledStarts(torch.tensor([[0.5, 1.0], [-0.5, 2.0]]))
    return ModelEnvironment(model=model(members), start_states=starts)


def test_sac_learns_inside_the_model_and_repeats_itself() -> None:
    def train() -> dict[str, Tensor]:
        config = SacConfig(hidden=(8, 8), environments=6, warmup=12, capacity=200, batch_size=16)
        trainer = SacTrainer(
            config,
            environment(),
            observation_width=2,
            action_low=ACTIONS.low,
            action_high=ACTIONS.high,
            streams=Streams(0),
        )
        trainer.advance(4)
        return trainer.state()

    one, other = train(), train()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=0, equal_nan=True)


def test_the_vector_form_has_the_model_s_spaces() -> None:
    vector = ModelVectorEnv(environment(), num_envs=3, horizon=5)
    assert vector.single_observation_space == OBSERVATIONS
    assert vector.single_action_space == ACTIONS
    assert vector.observation_space.shape == (3, 2)
    assert vector.action_space.shape == (3, 1)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, infos = vector.reset(seed=0)
    assert observations in vector.observation_space
    assert infos == {}
    vector.action_space.seed(0)
    observations, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
    assert observations in vector.observation_space
    assert [part.shape for part in (rewards, terminated, truncated)] == [(3,)] * 3
    assert (terminated.dtype, truncated.dtype) == (bool, bool)
    vector.close()


def played(vector: ModelVectorEnv, seed: int | None) -> np.ndarray:
    seen = [vector.reset(seed=seed)[0]]
    seen += [vector.step(np.zeros((4, 1), np.float32))[0] for _ in range(7)]
    return np.stack(seen)


def test_a_seed_gives_the_same_rollouts() -> None:
    vector, other = (ModelVectorEnv(environment(), num_envs=4, horizon=3) for _ in range(2))
    first = played(vector, 1)
    np.testing.assert_array_equal(first, played(other, 1))
    assert not np.array_equal(first, played(vector, None))
    np.testing.assert_array_equal(first, played(vector, 1))
    assert not np.array_equal(first, played(vector, 2))


def test_a_rollout_that_is_over_begins_anew_at_its_next_step() -> None:
    vector = ModelVectorEnv(environment(), num_envs=2, horizon=2)
    vector.reset(seed=0)
    starts = {(0.5, 1.0), (-0.5, 2.0)}
    action = np.zeros((2, 1), np.float32)
    for _ in range(3):
        assert not vector.step(action)[3].any()
        observations, rewards, terminated, truncated, _ = vector.step(action)
        assert truncated.all()
        assert not terminated.any()
        assert not {tuple(row) for row in observations.tolist()} & starts
        observations, rewards, terminated, truncated, _ = vector.step(action)
        assert {tuple(row) for row in observations.tolist()} <= starts
        assert not np.stack((rewards, terminated, truncated)).any()


def test_a_terminal_rollout_begins_anew_alone() -> None:
    base = environment()
    ended = PessimisticModel(
        ensemble=base.model.ensemble,
        facts=base.model.facts,
        terminates=lambda after: after[:, 1] > 1.5,
    )
    vector = ModelVectorEnv(
        ModelEnvironment(model=ended, start_states=base.start_states), num_envs=8, horizon=50
    )
    seen, _ = vector.reset(seed=3)
    over = np.zeros(8, bool)
    for _ in range(10):
        before = over
        seen, rewards, terminated, truncated, _ = vector.step(np.zeros((8, 1), np.float32))
        assert not terminated[before].any()
        np.testing.assert_array_equal(terminated[~before], seen[~before][:, 1] > 1.5)
        assert not rewards[before].any()
        over = terminated | truncated
    assert over.any()


def test_gymnasium_s_statistics_count_its_episodes() -> None:
    facts = ModelFacts.of(encoder(), BOUNDS)
    one = (-1.0 - float(facts.target_offset[2])) / float(facts.target_scale[2])
    vector = RecordEpisodeStatistics(ModelVectorEnv(environment(one), num_envs=2, horizon=4))
    vector.reset(seed=0)
    for _ in range(4):
        *_, truncated, infos = vector.step(np.zeros((2, 1), np.float32))
    assert truncated.all()
    np.testing.assert_allclose(infos["episode"]["r"], -4.0, rtol=1e-5)
    assert infos["episode"]["l"].tolist() == [4, 4]


def test_actions_beyond_their_bounds_are_clipped() -> None:
    members = Members([[0.0, 0.0, 0.0]], [[CERTAIN] * 3])
    base = environment()
    vector = ModelVectorEnv(
        ModelEnvironment(model=model(members), start_states=base.start_states),
        num_envs=1,
        horizon=9,
    )
    vector.reset(seed=0)
    vector.step(np.array([[99.0]]))
    facts = base.model.facts
    expected = (2.0 - facts.input_offset[2]) / facts.input_scale[2]
    torch.testing.assert_close(members.inputs[0, 2], expected)


def test_it_can_be_made_through_gymnasium() -> None:
    gymnasium.register(
        "PrimorlModel-v0",
        vector_entry_point=lambda num_envs, **_: ModelVectorEnv(
            environment(), num_envs=num_envs, horizon=4
        ),
    )
    vector = gymnasium.make_vec(
        "PrimorlModel-v0", num_envs=3, vectorization_mode="vector_entry_point"
    )
    assert vector.reset(seed=0)[0].shape == (3, 2)
    vector.close()
    gymnasium.registry.pop("PrimorlModel-v0")


@pytest.mark.parametrize("sizes", [{"num_envs": 0, "horizon": 1}, {"num_envs": 1, "horizon": 0}])
def test_sizes_that_are_not_positive_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ModelVectorEnv(environment(), **sizes)
