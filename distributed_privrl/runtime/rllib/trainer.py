"""RLlib's algorithms behind evaluation's port, and beside the plain loops: ``rllib_iql`` and so on.

This file imports Ray and torch only to train, so that a command line can check names and options
without them.
"""

import contextlib
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distributed_privrl.agents.options import DEFAULTS, with_options
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.trainer import OnEvaluation, Spaces, Trainer

if TYPE_CHECKING:
    from distributed_privrl.agents.policy import Policy
    from distributed_privrl.runtime.rllib.algorithm import OfflineAgentConfig

PREFIX = "rllib_"


@dataclass(frozen=True)
class RLlibTrainer:
    """An agent of ours as an RLlib algorithm.

    Privacy: without learners the rows stay in this process, and no Ray is needed. With learners
    they pass through Ray's object store. Only released and public ones are taken either way, as
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

    @property
    def keeps_rows(self) -> bool:
        """Whether rows stay in this process: learners read a file and Ray's object store."""
        return self.learners == 0

    def with_settings(self, settings: Mapping[str, Any]) -> "RLlibTrainer":
        """Return the trainer with some hyper-parameters changed; see `Trainer.with_settings`."""
        return replace(self, config=with_options(self.agent, self.config, settings))

    def prepare(self) -> None:
        """Import what training needs, and start Ray where learners need it."""
        from distributed_privrl.runtime.session import connect

        if self.learners:
            connect()
        from distributed_privrl.runtime.rllib import algorithm  # noqa: F401

        for logger in ("ray", "ray.rllib", "ray.data"):  # their import sets levels of its own
            logging.getLogger(logger).setLevel(logging.ERROR)

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

        proof_of(transitions, reader=self.name)
        self.prepare()
        each = math.gcd(steps, evaluate_every)
        with self._fed(transitions, spaces, seed=seed, steps=steps) as prepared:
            prepared.debugging(log_level="ERROR")
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

    @contextlib.contextmanager
    def _fed(
        self, transitions: Transitions, spaces: Spaces, *, seed: int, steps: int
    ) -> "Iterator[OfflineAgentConfig]":
        """Yield the algorithm's configuration, with the rows: in memory, or in a bridge."""
        from distributed_privrl.runtime.rllib.algorithm import RLLIB_ALGORITHMS
        from distributed_privrl.runtime.rllib.bridge import write_bridge
        from distributed_privrl.runtime.rllib.rows import HeldRows

        options = {item.name: getattr(self.config, item.name) for item in fields(self.config)}
        prepared = RLLIB_ALGORITHMS[self.agent].get_default_config()
        prepared.training(steps=steps, public_seed=seed, **options)
        about: dict[str, Any] = {
            "observation_space": spaces.observation,
            "action_space": spaces.action,
            "seed": seed,
        }
        if not self.learners:
            yield prepared.rows(HeldRows.of(transitions, **about))
            return
        with tempfile.TemporaryDirectory(prefix="privrl-") as folder:
            bridge = write_bridge(transitions, Path(folder) / "bridge", **about)
            prepared.bridge(bridge.folder, this_node_alone=True)
            yield prepared.learners(num_learners=self.learners)


RLLIB_TRAINERS: Mapping[str, Trainer] = {
    PREFIX + name: RLlibTrainer(name, config) for name, config in DEFAULTS.items()
}
"""The trainers, by name."""
