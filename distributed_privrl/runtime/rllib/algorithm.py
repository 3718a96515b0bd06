"""The one RLlib Algorithm and its configuration, and one of each an agent, registered with Tune."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import ray
from ray.data import ActorPoolStrategy
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import (
    COMPONENT_LEARNER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.tune import register_trainable
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_privrl.agents.algorithm import Algorithm as Agent
from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space
from distributed_privrl.runtime.rllib.bridge import Bridge
from distributed_privrl.runtime.rllib.learner import AgentLearner, let_discard
from distributed_privrl.runtime.rllib.module import AgentModule
from distributed_privrl.runtime.rllib.rows import BridgeData, HeldData, HeldRows, RowEncoder


class OfflineAgentConfig(AlgorithmConfig):  # type: ignore[misc]
    """Trains an agent of ours on a bridge: ``.bridge(folder).training(steps=..., ...)``.

    Every hyper-parameter of the agent is an option of ``training``; so are ``steps``, the gradient
    steps in total, which its schedules need, and ``public_seed``, of weights and batches (RLlib's
    own ``seed`` would seed global generators). ``dataset_num_iters_per_learner`` gradient steps are
    taken at each ``train()``. With N learners each takes its own minibatch of ``batch_size``.

    Args:
        algo_class: the algorithm; default: the agent's.
    """

    agent: ClassVar[str]
    """Name of the agent."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or RLLIB_ALGORITHMS[self.agent])
        for name, value in asdict(ALGORITHMS[self.agent].config).items():
            setattr(self, name, value)
        self.steps = 500_000
        self.public_seed = 0
        self.bridge_json: str | None = None
        self.held: HeldRows | None = None
        self._is_online = False
        self.lr = None
        self.num_env_runners = 0
        self.num_learners = 0
        self.dataset_num_iters_per_learner = 1000
        self.materialize_data = False
        self.materialize_mapped_data = False
        self.prelearner_class = RowEncoder
        self.input_read_method = "from_items"
        self.map_batches_kwargs = {
            "concurrency": None,
            "compute": ActorPoolStrategy(size=1),
            "num_cpus": 0,
            "max_restarts": 0,  # a reader that dies ends the training instead of being tried on
        }
        self.torch_ddp_kwargs = {"find_unused_parameters": True, "broadcast_buffers": False}

    def training(self, **options: Any) -> Self:
        """Set ``steps``, ``public_seed``, and options of the agent (or of RLlib)."""
        own = {item.name for item in fields(ALGORITHMS[self.agent].config)}
        for name in (own | {"steps", "public_seed"}) & set(options):
            setattr(self, name, options.pop(name))
        super().training(**options)
        return self

    def bridge(self, folder: Path | str, *, this_node_alone: bool = False) -> Self:
        """Set the rows to train on: a folder that ``privrl export --format rllib`` wrote.

        Args:
            folder: the bridge.
            this_node_alone: only this node of the cluster can read it; Ray must be running.
        """
        self.offline_data(input_=[str(Path(folder).absolute())])
        if this_node_alone:
            node = ray.get_runtime_context().get_node_id()
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            self.map_batches_kwargs = {**self.map_batches_kwargs, "scheduling_strategy": strategy}
        return self

    def rows(self, held: HeldRows) -> Self:
        """Set the rows to train on: they lie in this process, and stay in it."""
        self.held = held
        self.offline_data(input_=["(rows in memory)"])
        return self

    @property
    def agent_options(self) -> dict[str, Any]:
        """The agent's hyper-parameters."""
        names = (item.name for item in fields(ALGORITHMS[self.agent].config))
        return {name: getattr(self, name) for name in names}

    def validate(self) -> None:
        """Check the configuration, and take the spaces from the bridge.

        Raises:
            ConfigError: no bridge, a wrong option, or an action space that the agent cannot use.
            StorageError: the bridge cannot be read.
        """
        check_positive("steps", self.steps)
        check_positive("dataset_num_iters_per_learner", self.dataset_num_iters_per_learner)
        agent = self._agent()
        found = self._found()
        agent.check_actions(found.action_space)
        if isinstance(found, Bridge):
            self.bridge_json = found.to_json()
        elif self.num_learners:
            raise ConfigError("rows in memory are for num_learners=0: others need a bridge")
        self.offline_data_class = BridgeData if self.num_learners else HeldData
        self.observation_space: Space = found.observation_space
        self.action_space: Space = found.action_space
        self.train_batch_size_per_learner = agent.config.batch_size
        super().validate()

    def _agent(self) -> Agent[Any, Any]:
        return configured(ALGORITHMS[self.agent], self.agent_options)

    def _found(self) -> Bridge | HeldRows:
        """Return what says how the rows look."""
        if self.held is not None:
            return self.held
        if not (isinstance(self.input_, list) and len(self.input_) == 1):
            raise ConfigError(
                f"input_={self.input_!r} is not one bridge: give .bridge(FOLDER), which"
                " privrl export --format rllib makes"
            )
        return Bridge.load(Path(self.input_[0]))

    def get_default_learner_class(self) -> type[AgentLearner]:
        """Return the Learner."""
        return AgentLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the RLModule, with what it is made for."""
        found = self._found()
        return RLModuleSpec(
            module_class=AgentModule,
            model_config={
                "agent": self.agent,
                "options": self.agent_options,
                "observation_space": found.observation_space,
                "action_space": found.action_space,
                "mean": found.normalisation.mean.tolist(),
                "spread": found.normalisation.spread.tolist(),
                "seed": self.public_seed,
            },
        )


class OfflineAgent(Algorithm):  # type: ignore[misc]
    """An agent of ours on RLlib's new API stack."""

    config_class: ClassVar[type[OfflineAgentConfig]]

    @classmethod
    def get_default_config(cls) -> OfflineAgentConfig:
        """Return the agent's defaults."""
        return cls.config_class()

    def setup(self, config: OfflineAgentConfig) -> None:
        """Build the learners.

        Raises:
            ConfigError: they would wait for CPUs for ever.
        """
        if config.num_learners:
            check_cpus(config)
        super().setup(config)
        if config.held is not None:
            let_discard(self, self.learner_group, self.learner_group._learner)

    def _setup_logdir(self) -> None:
        """Make the folder that RLlib asks for; with rows in memory one that goes with the agent."""
        if self.config.held is None:
            super()._setup_logdir()
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="privrl-")
            self._logdir = self._folder.name

    def _record_usage(self, config: OfflineAgentConfig) -> None:
        """Write nothing to Ray's key-value store: its calls are counted, and so are agents."""

    def cleanup(self) -> None:
        """End the learners, and remove the folder."""
        super().cleanup()
        if self.config.held is not None:
            self._folder.cleanup()

    def training_step(self) -> None:
        """Take ``dataset_num_iters_per_learner`` gradient steps."""
        iterators = self.offline_data.sample(
            num_samples=1, num_shards=self.config.num_learners, return_iterator=True
        )
        results = self.learner_group.update(
            training_data=TrainingData(data_iterators=iterators),
            num_iters=self.config.dataset_num_iters_per_learner,
        )
        self.metrics.aggregate(results, key=LEARNER_RESULTS)

    def policy(self) -> Policy:
        """Return the policy as it is now, without RLlib."""
        component = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
        state = self.learner_group.get_state(components=component)[COMPONENT_LEARNER]
        module = self.config.get_default_rl_module_spec()
        module.observation_space = self.config.observation_space
        module.action_space = self.config.action_space
        agent: AgentModule = module.build()
        agent.set_state(state[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID])
        return agent.policy()


def check_cpus(config: OfflineAgentConfig) -> None:
    """Check that a cluster's CPUs are enough for this process and the learners.

    Args:
        config: of the algorithm; Ray must be running.

    Raises:
        ConfigError: they are not: the first ``train()`` would wait for ever.
    """
    each = 1.0 if config.num_cpus_per_learner == "auto" else float(config.num_cpus_per_learner)
    context = ray.get_runtime_context()
    in_actor = context.get_actor_id() is not None
    own = context.get_assigned_resources().get("CPU", 0.0) if in_actor else 0.0
    need = own + config.num_learners * each
    have = ray.cluster_resources().get("CPU", 0.0)
    if need > have + 1e-9:
        raise ConfigError(
            f"num_learners={config.num_learners} needs {need:g} CPUs but Ray has {have:g}: it would"
            " wait for ever; lower num_learners (0 trains in this process) or num_cpus_per_learner"
        )


class BCConfig(OfflineAgentConfig):
    """Behaviour cloning."""

    agent = "bc"


class IQLConfig(OfflineAgentConfig):
    """Implicit Q-learning."""

    agent = "iql"


class TD3BCConfig(OfflineAgentConfig):
    """TD3+BC."""

    agent = "td3bc"


class EDACConfig(OfflineAgentConfig):
    """Ensemble-diversified actor-critic."""

    agent = "edac"


class CQLConfig(OfflineAgentConfig):
    """Conservative Q-learning."""

    agent = "cql"


class DiscreteCQLConfig(OfflineAgentConfig):
    """Conservative Q-learning for Discrete actions."""

    agent = "discrete_cql"


class DiscreteBCQConfig(OfflineAgentConfig):
    """Batch-constrained Q-learning for Discrete actions."""

    agent = "discrete_bcq"


class BC(OfflineAgent):
    """Behaviour cloning."""

    config_class = BCConfig


class IQL(OfflineAgent):
    """Implicit Q-learning."""

    config_class = IQLConfig


class TD3BC(OfflineAgent):
    """TD3+BC."""

    config_class = TD3BCConfig


class EDAC(OfflineAgent):
    """Ensemble-diversified actor-critic."""

    config_class = EDACConfig


class CQL(OfflineAgent):
    """Conservative Q-learning."""

    config_class = CQLConfig


class DiscreteCQL(OfflineAgent):
    """Conservative Q-learning for Discrete actions."""

    config_class = DiscreteCQLConfig


class DiscreteBCQ(OfflineAgent):
    """Batch-constrained Q-learning for Discrete actions."""

    config_class = DiscreteBCQConfig


RLLIB_ALGORITHMS: Mapping[str, type[OfflineAgent]] = {
    one.config_class.agent: one for one in (BC, IQL, TD3BC, EDAC, CQL, DiscreteCQL, DiscreteBCQ)
}
"""The algorithms by the names of their agents."""


def register() -> None:
    """Make the algorithms known to Tune, as ``privrl_iql`` and so on."""
    for name, one in RLLIB_ALGORITHMS.items():
        register_trainable(f"privrl_{name}", one)


register()
