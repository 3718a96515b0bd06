"""RLlib's algorithms behind evaluation's port, and beside the plain loops: ``rllib_iql`` and so on.

This file imports Ray and torch only to train, so that a command line can check names and options
without them.
"""

import logging
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distributed_privrl.agents.options import DEFAULTS, with_options
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.trainer import OnEvaluation, Spaces, Trainer

if TYPE_CHECKING:
    from distributed_privrl.agents.policy import Policy

PREFIX = "rllib_"


@dataclass(frozen=True)
class RLlibTrainer:
    """An agent of ours as an RLlib algorithm.

    Privacy: rows pass through Ray's object store, so only released and public ones are taken, as
    `ReleasedTransitions`; no noise, no event.

    Args:
        agent: its name.
        config: its hyper-parameters.
        learners: remote learners; 0 trains in this process.
    """

    agent: str
    config: AgentConfig
    learners: int = 0

    released_rows_only: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """What a configuration calls it."""
        return PREFIX + self.agent

    def with_settings(self, settings: Mapping[str, Any]) -> "RLlibTrainer":
        """Return the trainer with some hyper-parameters changed; see `Trainer.with_settings`."""
        return replace(self, config=with_options(self.agent, self.config, settings))

    def train(
        self,
        transitions: Transitions,
        spaces: Spaces,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        on_evaluation: OnEvaluation,
    ) -> "Policy":
        """Train the agent; see `Trainer.train`.

        Raises:
            ConfigError: rows or spaces that the agent cannot use, or too few CPUs.
            UnsafeError: the rows come without the proof that they may leave.
        """
        from distributed_privrl.experiments.clearance import proof_of
        from distributed_privrl.runtime.rllib.bridge import write_bridge
        from distributed_privrl.runtime.session import connect

        proof_of(transitions, reader=self.name)
        connect()
        from distributed_privrl.runtime.rllib.algorithm import RLLIB_ALGORITHMS

        for logger in ("ray.rllib", "ray.data"):  # their import sets levels of its own
            logging.getLogger(logger).setLevel(logging.ERROR)
        each = math.gcd(steps, evaluate_every)
        options = {item.name: getattr(self.config, item.name) for item in fields(self.config)}
        with tempfile.TemporaryDirectory(prefix="privrl-") as folder:
            bridge = write_bridge(
                transitions,
                Path(folder) / "bridge",
                observation_space=spaces.observation,
                action_space=spaces.action,
                seed=seed,
            )
            prepared = (
                RLLIB_ALGORITHMS[self.agent]
                .get_default_config()
                .training(steps=steps, public_seed=seed, **options)
                .bridge(bridge.folder, this_node_alone=True)
                .learners(num_learners=self.learners)
                .debugging(log_level="ERROR")
            )
            prepared.dataset_num_iters_per_learner = each
            agent = prepared.build_algo()
            try:
                for step in range(each, steps + 1, each):
                    agent.train()
                    if step % evaluate_every == 0:
                        on_evaluation(step, agent.policy())
                policy: Policy = agent.policy()
            finally:
                agent.stop()
        return policy


RLLIB_TRAINERS: Mapping[str, Trainer] = {
    PREFIX + name: RLlibTrainer(name, config) for name, config in DEFAULTS.items()
}
"""The trainers, by name."""
