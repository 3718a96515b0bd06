"""A tiny crowd of experts that balance a pole by similar rules, and runs on what they recorded."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import (
    EXPERTS_KEY,
    UNIT_COLUMN,
    ExpertFacts,
    experts_folder,
    unit_of_expert,
    write_experts,
    write_log_probabilities,
)
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.privacy.units import Relation
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

DATASET, EXPERTS, TRAJECTORIES, LENGTH, P_MIN = "crowd/cartpole-v0", 40, 7, 12, 0.1
BOUNDS = """
observation: {low: [-2.4, -3, -0.3, -3], high: [2.4, 3, 0.3, 3]}
reward: [0, 1]
"""


def crowd(seed: int = 0) -> ExpertPolicies:
    """Return linear rules: push to where the pole falls, each expert with weights of its own."""
    generator = torch.Generator().manual_seed(seed)
    rule = torch.tensor([0.1, 0.3, 1.0, 0.5]) + 0.1 * torch.randn(EXPERTS, 4, generator=generator)
    return ExpertPolicies(
        weights=(torch.stack([-rule, rule], dim=2),),
        biases=(torch.zeros(EXPERTS, 2),),
        activation="tanh",
        minimum_probability=P_MIN,
        unit_ids=np.array([unit_of_expert(i) for i in range(EXPERTS)], np.uint64),
        offset=torch.zeros(4),
        scale=torch.ones(4),
    )


def recorded(policies: ExpertPolicies) -> tuple[Trajectories, np.ndarray]:
    """Return each expert's trajectories, and the log-probability of each action."""
    generator = torch.Generator().manual_seed(1)
    environment = gymnasium.make("CartPole-v1", max_episode_steps=LENGTH)
    parts: dict[str, list[Any]] = {name: [] for name in ("observation", "action", "end", "cut")}
    lengths, logs = [], []
    for expert in range(EXPERTS):
        for number in range(TRAJECTORIES):
            state, _ = environment.reset(seed=1000 * expert + number)
            over = False
            parts["observation"].append(state)
            lengths.append(0)
            while not over:
                scores = policies.log_probabilities(expert, torch.from_numpy(state)[None])[0]
                action = int(torch.multinomial(scores.exp(), 1, generator=generator))
                state, _, end, cut, _ = environment.step(action)
                over = end or cut
                for name, value in zip(parts, (state, action, end, cut and not end), strict=True):
                    parts[name].append(value)
                logs.append(float(scores[action]))
                lengths[-1] += 1
    units = np.repeat(policies.unit_ids, TRAJECTORIES)
    return Trajectories(
        observations=np.stack(parts["observation"]),
        actions=np.array(parts["action"]),
        rewards=np.ones(len(logs)),
        terminated=np.array(parts["end"]),
        truncated=np.array(parts["cut"]),
        offsets=np.cumsum([0, *lengths]),
        unit_ids=units,
    ), np.array(logs, np.float32)


def write_crowd(
    store: DatasetStore,
    policies: ExpertPolicies,
    trajectories: Trajectories,
    logs: np.ndarray,
    environment: str = "CartPole-v1",
    **facts: Any,
) -> None:
    """Write a dataset of experts; ``facts`` change what its metadata say."""
    about = ExpertFacts(
        count=EXPERTS,
        trajectories=TRAJECTORIES,
        minimum_probability=P_MIN,
        max_length=LENGTH,
        shared_policy=False,
        log_probabilities=True,
    ).as_metadata()
    made = gymnasium.make(environment)
    store.write_trajectories(
        DATASET,
        trajectories,
        observation_space=made.observation_space,
        action_space=made.action_space,
        layout="packed",
        environment=environment,
        unit_column=UNIT_COLUMN,
        metadata={
            EXPERTS_KEY: {**about, **facts},
            "reference_returns": {"random": 20.0, "best": 500.0},
            "evaluation_returns": {"random": 20.0, "best": 40.0, "steps": 40},
        },
    )
    folder = experts_folder(store, DATASET)
    write_experts(folder, policies)
    write_log_probabilities(folder, logs)


def crowd_store(root: Path) -> DatasetStore:
    """Write the crowd's dataset into a new store."""
    store, policies = DatasetStore(root), crowd()
    write_crowd(store, policies, *recorded(policies))
    return store


def config_values(**changes: Any) -> dict[str, Any]:
    """Return a run on the crowd; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": "expert",
        "data": {
            "sensitive": DATASET,
            "unit": UNIT_COLUMN,
            "units": EXPERTS,
            "environment": "CartPole-v1",
        },
        "privacy": {"epsilon": 20.0, "delta": 0.02},
        "filter": {
            "draws": 4,
            "minimum_probability": P_MIN,
            "max_length": LENGTH,
            "release_pool": 5,
        },
        "model": {"hidden": [8], "options": {"batch_size": 32, "learning_rate": 1e-2}},
        "training": {
            "rounds": 6,
            "expected_batch_size": 20,
            "rows_per_expert": 4,
            "stable_steps": 2,
        },
        "evaluation": {"episodes": 0},
        "runtime": {"workers": 2, "executor": "local"},
    }
    return changed(values, changes)


def config(**changes: Any) -> ExpertConfig:
    """Return the configuration of `config_values`."""
    return parsed(config_values(**changes), ExpertConfig)


class Crowd(World):
    """A copy of the crowd's dataset, and a ledger with a budget by expert."""

    dataset, key = DATASET, 7

    def __init__(self, folder: Path, master: DatasetStore, *, epsilon: float = 100.0) -> None:
        super().__init__(folder, master, BOUNDS)
        relation = Relation.POLICY_LEVEL
        self.budget(epsilon=epsilon, delta=0.024, unit=UNIT_COLUMN, relation=relation)

    def config(self, **changes: Any) -> ExpertConfig:
        """Return the run's configuration."""
        return config(**{"data__bounds": str(self.bounds), **changes})


AGENTS = ("discrete_cql", "discrete_bcq")


def facts_of(store: DatasetStore, agent: str = "discrete_cql", **model: Any) -> AgentFacts:
    """Return an agent's public facts; ``model`` changes its settings."""
    (store.root / "bounds.yaml").write_text(BOUNDS)
    settings = config(model__agent=agent, data__bounds=str(store.root / "bounds.yaml"))
    asked = settings.model.model_copy(update=model)
    return AgentFacts.of(asked, settings.data, store, seed=3)


def units(facts: AgentFacts, store: DatasetStore, count: int, rows: int) -> UnitBatch:
    """Return ``count`` units of so many rows of the crowd."""
    encoded = facts.rows(store.read_transitions(DATASET, unit="transition")).numpy()
    chosen = encoded[: count * rows].reshape(count, rows, -1).copy()
    return UnitBatch(
        rows=chosen,
        valid=np.ones((count, rows), bool),
        draws=np.zeros((count, rows, 0)),
    )
