"""Expert policies: probabilities, chance, files."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy import stats

from distributed_privrl.agents import experts
from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import ExpertFacts
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.spaces import Box, Discrete
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, hash_unit

LEAST = 0.02


def made(count: int = 5, *, shared: bool = False, actions: int = 3, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    stacked, told = (1, 2) if shared else (count, 0)
    widths = (4 + told, 8, 6, actions)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return ExpertPolicies(
        weights=tuple(normal(stacked, *pair) for pair in itertools.pairwise(widths)),
        biases=tuple(normal(stacked, out) for out in widths[1:]),
        activation="tanh",
        minimum_probability=LEAST,
        unit_ids=np.array([experts.unit_of_expert(i) for i in range(count)], dtype=np.uint64),
        offset=normal(4),
        scale=normal(4).abs() + 0.5,
        conditions=normal(count, 2) if shared else None,
    )


def written_out(policies: ExpertPolicies, expert: int, observation: torch.Tensor) -> int:
    """The likeliest action by the sums of products themselves."""
    row = ((observation - policies.offset) / policies.scale).double().tolist()
    layer = expert
    if policies.conditions is not None:
        row, layer = row + policies.conditions[expert].tolist(), 0
    for index, (weight, bias) in enumerate(zip(policies.weights, policies.biases, strict=True)):
        if index:
            row = [math.tanh(value) for value in row]
        columns = weight[layer].double().T.tolist()
        row = [
            sum(map(math.prod, zip(row, column, strict=True))) + float(shift)
            for column, shift in zip(columns, bias[layer], strict=True)
        ]
    return int(np.argmax(row))


@pytest.mark.parametrize("shared", [False, True])
def test_the_best_action_has_what_the_others_leave(shared: bool) -> None:
    policies = made(shared=shared)
    observations = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    best = policies.greedy(observations.expand(5, 30, 4))
    for expert in range(5):
        found = policies.log_probabilities(expert, observations)
        expected = [written_out(policies, expert, row) for row in observations]
        assert found.argmax(dim=1).tolist() == expected
        assert best[expert].tolist() == expected
        assert sorted(set(found.exp().flatten().tolist())) == pytest.approx([LEAST, 1 - 2 * LEAST])
        assert bool((found.exp() >= LEAST).all())
        assert bool((found.double().exp() >= LEAST).all())
        assert found.exp().sum(dim=1).tolist() == pytest.approx([1.0] * 30, abs=1e-6)
    assert len({tuple(row) for row in best.tolist()}) > 1


def test_least_probabilities_are_never_below_in_either_precision() -> None:
    for least in (0.02, 0.01, 1 / 3, 0.1, 1e-4):
        found = replace(made(1), minimum_probability=least).log_probabilities(0, torch.zeros(1, 4))
        assert float(found.exp().min()) >= np.float32(least)
        assert float(found.double().exp().min()) >= least
        assert float(found.double().exp().max()) <= 1


def test_chance_follows_the_probabilities() -> None:
    policies = made(2)
    observations = torch.zeros(2, 50_000, 4)
    actions, logs = policies.act(observations, torch.Generator().manual_seed(3))
    for expert in range(2):
        expected = policies.log_probabilities(expert, torch.zeros(1, 4))[0]
        assert torch.equal(logs[expert], expected[actions[expert]])
        counts = torch.bincount(actions[expert], minlength=3).numpy()
        odds = expected.double().exp().numpy()
        assert stats.chisquare(counts, 50_000 * odds / odds.sum()).pvalue > 1e-6
    again, _ = policies.act(observations, torch.Generator().manual_seed(3))
    assert torch.equal(actions, again)


@pytest.mark.parametrize("shared", [False, True])
def test_files_hold_every_expert_and_give_a_part(shared: bool, tmp_path: Path) -> None:
    policies = made(shared=shared)
    policies.save(tmp_path / "some.safetensors")
    assert (tmp_path / "some.safetensors").stat().st_mode & 0o077 == 0
    observations = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    for start, stop in ((0, None), (2, 4)):
        loaded = ExpertPolicies.load(tmp_path / "some.safetensors", start, stop)
        assert loaded.unit_ids.tolist() == policies.unit_ids[start:stop].tolist()
        assert (loaded.widths, loaded.activation) == (policies.widths, "tanh")
        for place in range(len(loaded)):
            expected = policies.log_probabilities(start + place, observations)
            assert torch.equal(loaded.log_probabilities(place, observations), expected)
            part = policies.part(start, stop or 5)
            assert torch.equal(part.log_probabilities(place, observations), expected)


def test_parts_make_the_whole_again() -> None:
    for shared in (False, True):
        policies = made(shared=shared)
        whole = ExpertPolicies.concatenate([policies.part(0, 2), policies.part(2, 5)])
        assert whole.unit_ids.tolist() == policies.unit_ids.tolist()
        observations = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
        assert torch.equal(whole.greedy(observations), policies.greedy(observations))
    with pytest.raises(ConfigError, match="parts must be of one form, got 2"):
        ExpertPolicies.concatenate([made(), made(shared=True)])
    with pytest.raises(ConfigError, match="parts must be of one form, got 0"):
        ExpertPolicies.concatenate([])


def test_wrong_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    with pytest.raises(StorageError, match="No such file"):
        ExpertPolicies.load(path)
    path.write_bytes(b"no safetensors")
    with pytest.raises(StorageError, match="holds no expert policies"):
        ExpertPolicies.load(path)
    path.write_bytes(safetensors.torch.save({"weight_0": torch.zeros(2)}))
    with pytest.raises(StorageError, match="holds no expert policies"):
        ExpertPolicies.load(path)
    policies = made()
    policies.save(path)
    with pytest.raises(ConfigError, match="experts 3 to 9 must lie in 0 to 5"):
        ExpertPolicies.load(path, 3, 9)
    content = safetensors.torch.load(path.read_bytes()) | {"bias_0": torch.zeros(5, 9)}
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    path.write_bytes(safetensors.torch.save(content, metadata))
    with pytest.raises(StorageError, match="layer 0 must have weights"):
        ExpertPolicies.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: {"minimum_probability": 0.34}, "minimum_probability must lie in"),
        (lambda one: {"minimum_probability": 0.0}, "minimum_probability must lie in"),
        (lambda one: {"activation": "sigmoid"}, "activation must be tanh or relu"),
        (lambda one: {"scale": torch.zeros(4)}, "scale must be 4 numbers > 0"),
        (lambda one: {"biases": one.biases[:2]}, "equally many layers"),
        (lambda one: {"offset": torch.zeros(3)}, "layer 0 must have weights"),
        (lambda one: {"unit_ids": one.unit_ids[:2]}, "layer 0 must have weights"),
        (lambda one: {"conditions": torch.zeros(5, 2)}, "layer 0 must have weights"),
        (lambda one: {"offset": torch.zeros(4, dtype=torch.float64)}, "must be float32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: Callable[[Any], Any], message: str) -> None:
    policies = made()
    with pytest.raises(ConfigError, match=message):
        replace(policies, **change(policies))
    with pytest.raises(ConfigError, match="expert must lie in 0 to 4"):
        policies.log_probabilities(-1, torch.zeros(1, 4))


def dataset_of(store: DatasetStore, facts: ExpertFacts | None = None) -> None:
    rows = Trajectories(
        observations=np.zeros((4, 4), np.float32),
        actions=np.zeros(3, np.int64),
        rewards=np.zeros(3, np.float32),
        terminated=np.zeros(3, bool),
        truncated=np.array([False, False, True]),
        offsets=np.array([0, 3]),
        unit_ids=np.array([hash_unit("expert 0")], np.uint64),
    )
    store.write_trajectories(
        "some/experts-v0",
        rows,
        observation_space=Box(-np.ones(4, np.float32), np.ones(4, np.float32)),
        action_space=Discrete(3),
        layout="packed",
        unit_column=experts.UNIT_COLUMN,
        metadata={} if facts is None else {experts.EXPERTS_KEY: facts.as_metadata()},
    )


def test_experts_lie_beside_their_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "SHARD_EXPERTS", 2)
    store = DatasetStore(tmp_path)
    facts = ExpertFacts(
        count=5,
        trajectories=1,
        minimum_probability=LEAST,
        max_length=3,
        shared_policy=False,
        log_probabilities=True,
    )
    dataset_of(store, facts)
    assert ExpertFacts.of(store.info("some/experts-v0")) == facts
    with pytest.raises(StorageError, match="holds no experts"):
        experts.expert_files(store, "some/experts-v0")
    policies = made()
    folder = experts.experts_folder(store, "some/experts-v0")
    experts.write_experts(folder, policies)
    experts.write_log_probabilities(folder, np.array([-1, -2, -3], np.float32))
    files = experts.expert_files(store, "some/experts-v0")
    assert [len(ExpertPolicies.load(file)) for file in files] == [2, 2, 1]
    units = np.concatenate([ExpertPolicies.load(file).unit_ids for file in files])
    assert units.tolist() == [hash_unit(f"expert {number}") for number in range(5)]
    read = experts.read_log_probabilities(store, "some/experts-v0")
    assert read.tolist() == [-1, -2, -3]
    experts.write_log_probabilities(folder, np.zeros(2, np.float32))
    with pytest.raises(StorageError, match="must hold 3 numbers, one a row"):
        experts.read_log_probabilities(store, "some/experts-v0")


def test_other_datasets_have_no_experts(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    dataset_of(store)
    with pytest.raises(ConfigError, match="has no metadata key"):
        ExpertFacts.of(store.info("some/experts-v0"))
    with pytest.raises(ConfigError, match="no dataset"):
        experts.expert_files(store, "other/experts-v0")
