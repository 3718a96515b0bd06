import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import unit_of_expert, write_experts
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.expert.hosting import COUNT_UNIT, ExpertHost, host_specs
from distributed_privrl.methods.expert.pools import padded
from tests.methods.expert.toy import Episode, Table, host_of, trajectories

LEAST = 0.05
WELL = (Table(((0.9, 0.1), (0.3, 0.7))), Table(((0.2, 0.8), (0.5, 0.5))))
STATES = np.array([[0.0], [1.0], [0.0], [1.0], [1.0]], np.float32)
ACTIONS = np.array([0, 1, 1, 0])


def literal(policies: Sequence[Table], states: np.ndarray, actions: np.ndarray) -> list[float]:
    """The count as algorithm 1 writes it."""
    found = []
    for steps in range(1, len(actions) + 1):
        total = 0.0
        for policy in policies:
            product = 1.0
            for step in range(steps):
                product *= policy.odds(int(states[step, 0]), int(actions[step]))
            total += product
        found.append(total)
    return found


def test_counts_are_those_of_algorithm_1() -> None:
    counts = host_of(WELL, minimum_probability=LEAST).prefix_counts(STATES, ACTIONS)
    assert counts == pytest.approx(literal(WELL, STATES, ACTIONS), abs=1e-6)
    assert (counts <= np.array(literal(WELL, STATES, ACTIONS)) * (1 + 1e-6)).all()


def test_hosts_sum_to_one_host_exactly() -> None:
    generator = np.random.default_rng(2)
    odds = generator.uniform(0.1, 0.9, (150, 2))
    many = [Table(tuple((float(p), float(1 - p)) for p in row)) for row in odds]
    whole = host_of(many, minimum_probability=LEAST).prefix_counts(STATES, ACTIONS)
    parts = [
        host_of(many[start:stop], minimum_probability=LEAST).prefix_counts(STATES, ACTIONS)
        for start, stop in ((0, 7), (7, 100), (100, 150))
    ]
    assert (sum(parts) == whole).all()
    assert (np.diff(whole) <= 0).all()
    assert (whole / COUNT_UNIT == np.rint(whole / COUNT_UNIT)).all()


def test_long_trajectories_neither_underflow_nor_grow() -> None:
    steps = 900
    states, actions = np.zeros((steps + 1, 1), np.float32), np.zeros(steps, np.int64)
    sure = Table(((1 - 1e-3, 1e-3), (0.5, 0.5)))
    counts = host_of([sure] * 3, minimum_probability=1e-4).prefix_counts(states, actions)
    assert counts[-1] == pytest.approx(3 * (1 - 1e-3) ** steps, rel=1e-3)
    rare = host_of([sure], minimum_probability=1e-4).prefix_counts(states, actions + 1)
    assert np.isfinite(rare).all()
    assert rare[-1] == 0
    assert (np.diff(counts) <= 0).all()


class Broken:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]


class InPlace:
    """Malformed, and changes what it is given."""

    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        observations.mul_(0)
        return torch.zeros(len(observations), 2)


class Nested:
    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.full((len(observations), 2), 0.5).log()])


class Warns:
    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        warnings.warn("secret", stacklevel=1)
        return torch.zeros(len(observations), 2)


NULL = {
    "sum above one": Table(((0.9, 0.3), (0.5, 0.5))),
    "sum below one": Table(((0.6, 0.3), (0.5, 0.5))),
    "below the minimum": Table(((0.96, 0.04), (0.5, 0.5))),
    "never": Table(((1.0, 0.0), (0.5, 0.5))),
    "not a number": Table(((float("nan"), 0.5), (0.5, 0.5))),
    "infinite": Table(((float("inf"), 0.5), (0.5, 0.5))),
    "raises": Broken(RuntimeError("secret")),
    "shape": Broken(torch.zeros(5, 3)),
    "no tensor": Broken("nothing"),
    "in place": InPlace(),
    "warns": Warns(),
    "sparse": Broken(torch.full((5, 2), 0.5).log().to_sparse()),
    "on no device": Broken(torch.zeros(5, 2, device="meta")),
    "complex": Broken(torch.full((5, 2), 0.5, dtype=torch.complex64).log()),
    "whole numbers": Broken(torch.zeros(5, 2, dtype=torch.int64)),
    "nested": Nested(),
}


@pytest.mark.parametrize("name", NULL)
def test_a_malformed_expert_counts_nowhere_and_leaves_no_trace(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = host_of(WELL, minimum_probability=LEAST).prefix_counts(STATES, ACTIONS)
    beside = host_of([NULL[name], *WELL], minimum_probability=LEAST)
    states = STATES.copy()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert (beside.prefix_counts(states, ACTIONS) == alone).all()
    assert (states == STATES).all()
    assert not warned
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_an_expert_counts_until_the_first_malformed_state_comes_next() -> None:
    """The state after a prefix matters, the last one too: a bad row may have cut what follows."""
    bad = Table(((0.8, 0.2), (0.99, 0.01)))
    host = host_of([bad], minimum_probability=LEAST)
    zero = np.zeros((4, 1), np.float32)
    assert (host.prefix_counts(zero, np.array([0, 0, 0])) > 0).tolist() == [True] * 3
    turned = zero.copy()
    turned[2:] = 1
    assert (host.prefix_counts(turned, np.array([0, 0, 0])) > 0).tolist() == [True, False, False]
    last = zero.copy()
    last[3] = 1
    assert (host.prefix_counts(last, np.array([0, 0, 0])) > 0).tolist() == [True, True, False]


def test_the_count_times_the_minimum_bounds_every_next_action() -> None:
    generator = np.random.default_rng(5)
    low = generator.uniform(0, 0.2, (40, 2))
    many = [Table(tuple((float(1 - p), float(p)) for p in row)) for row in low]
    host = host_of(many, minimum_probability=0.1)
    for first in (0.0, 1.0):
        states = np.array([[first], [1.0], [0.0]], np.float32)
        for action in (0, 1):
            count = host.prefix_counts(states, np.array([0, 0]))[0]
            true = sum(one.odds(int(first), 0) * one.odds(1, action) for one in many)
            assert true >= 0.1 * count * (1 - 1e-3)


def pool(changed: str | None = None) -> Trajectories:
    """Two trajectories for each of three experts; something of the second one's is changed."""
    some = [Episode((0, 1, 1), (0, 1), 1.0), Episode((1, 0, 2), (1, 1), 1.0)] * 3
    units = [0, 0, 1, 1, 2, 2]
    if changed == "missing":
        some, units = some[:3] + some[4:], [0, 0, 1, 2, 2]
    held = trajectories(some, units)
    if changed == "observation":
        held.observations[6] = np.nan
    elif changed == "after":
        held.observations[11] = np.inf
    elif changed == "action":
        held.actions[4] = 7
    elif changed == "reward":
        held.rewards[7] = np.inf
    return held


@pytest.mark.parametrize(
    ("changed", "left"), [("observation", []), ("action", []), ("reward", [1]), ("after", [1])]
)
def test_a_bad_row_cuts_its_trajectory_and_leaves_its_expert(changed: str, left: list[int]) -> None:
    """Who can be drawn does not depend on where trajectories went."""
    clean = host_of([*WELL, WELL[0]], minimum_probability=LEAST, pool=pool(), release_pool=2)
    host = host_of([*WELL, WELL[0]], minimum_probability=LEAST, pool=pool(changed), release_pool=2)
    assert host.describe().tolist() == [True] * 3
    assert (host.prefix_counts(STATES, ACTIONS) == clean.prefix_counts(STATES, ACTIONS)).all()
    cut = host.pools.drawn(1, 0 if changed in ("observation", "action") else 1)
    assert cut.actions.tolist() == left
    assert cut.truncated.tolist() == [True] * len(left)
    assert host.pools.drawn(1, 2).actions.tolist() == []
    for expert, number in ((0, 0), (0, 1), (2, 0), (2, 1)):
        whole = host.pools.drawn(expert, number)
        assert whole.rewards.tolist() == clean.pools.drawn(expert, number).rewards.tolist()


def test_an_expert_with_too_few_trajectories_is_neither_drawn_nor_counted() -> None:
    some = pool("missing")
    host = host_of([*WELL, WELL[0]], minimum_probability=LEAST, pool=some, release_pool=2)
    assert host.describe().tolist() == [True, False, True]
    counts = host.prefix_counts(STATES, ACTIONS)
    assert counts == pytest.approx(literal([WELL[0]] * 2, STATES, ACTIONS), abs=1e-6)
    none = host_of(WELL, minimum_probability=LEAST, pool=trajectories([], []))
    assert (none.prefix_counts(STATES, ACTIONS) == 0).all()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_padding_keeps_counts_and_hides_lengths(steps: int) -> None:
    """Every trajectory asks as much; the counts of its own prefixes are what they were."""
    host = host_of(WELL, minimum_probability=LEAST, pool=pool(), release_pool=2)
    whole = host.pools.drawn(1, 0).cut(np.array([steps]))
    states, actions = padded(whole, 5)
    assert (states.shape, states.dtype, actions.shape) == ((6, 1), np.float32, (5,))
    counts = host.prefix_counts(states, actions)[:steps]
    assert (counts == host.prefix_counts(whole.observations, whole.actions)).all()
    nothing, _ = padded(host.pools.drawn(9, 0), 5)
    assert (nothing.shape, nothing.dtype) == ((6, 1), np.float32)


def test_what_a_policy_says_does_not_decide_who_is_drawn() -> None:
    policies = [NULL["below the minimum"], NULL["raises"], WELL[0]]
    host = host_of(policies, minimum_probability=LEAST, pool=pool(), release_pool=2)
    assert host.describe().tolist() == [True] * 3


def test_drawn_trajectories_come_from_their_host_in_order() -> None:
    host = host_of(WELL, minimum_probability=LEAST, pool=pool(), release_pool=2, first=1)
    assert (
        len(host.pools.drawn(0, 0))
        == len(host.pools.drawn(3, 0))
        == len(host.pools.drawn(-1, 0))
        == 0
    )
    assert len(host.pools.drawn(1, 2)) == 0
    first, second = host.pools.drawn(1, 0), host.pools.drawn(2, 1)
    assert first.observations[:, 0].tolist() == [0, 1, 1]
    assert second.observations[:, 0].tolist() == [1, 0, 2]
    assert second.terminated.tolist() == [False, True]


def stored(root: Path, experts: int = 5, n: int = 3, steps: int = 6) -> DatasetStore:
    """A dataset of experts with a network each, and their policies beside it."""
    store, generator = DatasetStore(root), torch.Generator().manual_seed(4)
    numbers = np.random.default_rng(4)
    units = np.array([unit_of_expert(number) for number in range(experts)], np.uint64)
    count = experts * n
    held = Trajectories(
        observations=numbers.normal(size=(count * (steps + 1), 2)).astype(np.float32),
        actions=numbers.integers(3, size=count * steps),
        rewards=np.ones(count * steps, np.float32),
        terminated=np.zeros(count * steps, bool),
        truncated=np.tile(np.arange(steps) == steps - 1, count),
        offsets=offsets_of([steps] * count),
        unit_ids=np.repeat(units, n),
    )
    store.write_trajectories(
        "toy/experts-v0",
        held,
        observation_space=Box(-9, 9, (2,)),
        action_space=Discrete(3),
        unit_column="expert",
        layout="packed",
    )
    policies = ExpertPolicies(
        weights=(
            torch.randn(experts, 2, 8, generator=generator),
            torch.randn(experts, 8, 3, generator=generator),
        ),
        biases=(torch.zeros(experts, 8), torch.zeros(experts, 3)),
        activation="tanh",
        minimum_probability=0.02,
        unit_ids=units,
        offset=torch.zeros(2),
        scale=torch.ones(2),
    )
    write_experts(store.root / "toy/experts-v0" / "experts", policies)
    return store


def specs(store: DatasetStore, hosts: int, **changes: int) -> list:
    values = {"experts": 5, "release_pool": 2, "max_length": 4, **changes}
    return host_specs(store, "toy/experts-v0", hosts=hosts, minimum_probability=0.02, **values)


def test_stored_experts_are_hosted_from_references(tmp_path: Path) -> None:
    store = stored(tmp_path)
    whole = ExpertHost(specs(store, 1)[0])
    several = [ExpertHost(pickle.loads(pickle.dumps(spec))) for spec in specs(store, 3)]
    read = store.read_trajectories("toy/experts-v0")
    one = whole.pools.drawn(4, 1)
    assert len(one.actions) == 4
    assert (one.observations == read.select([13]).observations[:5]).all()
    assert one.truncated.tolist() == [False, False, False, True]
    live = np.concatenate([host.describe() for host in several])
    assert live.tolist() == [True] * 5
    found = [host.pools.drawn(4, 1) for host in several]
    assert [len(other) == 1 for other in found] == [False, False, True]
    counts = whole.prefix_counts(one.observations, one.actions)
    assert (
        sum(host.prefix_counts(one.observations, one.actions) for host in several) == counts
    ).all()
    assert counts[0] >= 0.02 * 5
    assert not ExpertHost(specs(store, 1, release_pool=4)[0]).describe().any()


def test_what_cannot_be_hosted_is_refused(tmp_path: Path) -> None:
    store = stored(tmp_path)
    with pytest.raises(ConfigError, match="has 5 experts"):
        ExpertHost(specs(store, 1, experts=6)[0])
    with pytest.raises(ConfigError, match="at least 1"):
        specs(store, 0)
