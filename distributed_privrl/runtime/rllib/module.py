"""The one RLModule: any agent's networks, its losses for training, its policy for acting."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch import TorchRLModule

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy, decide
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, part_width

LOSS = "loss"


class AgentModule(TorchRLModule):  # type: ignore[misc]
    """Networks of an agent that `model_config` names.

    Its state holds the weights (targets too), the normalisation and the number of gradient steps.
    ``model_config`` has ``agent``, ``options``, ``mean``, ``spread``, ``seed`` and the spaces as
    the bridge says them: ``observation_space`` and ``action_space``.
    """

    algorithm: Algorithm[Any, Any]
    sizes: Sizes

    def setup(self) -> None:
        """Make the networks from the public seed."""
        given = self.model_config
        self.algorithm = configured(ALGORITHMS[given["agent"]], given["options"])
        self._spaces: tuple[Space, Space] = (given["observation_space"], given["action_space"])
        observation_width, action_width = map(part_width, self._spaces)
        discrete = isinstance(self._spaces[1], Discrete)
        self.sizes = Sizes(observation_width, action_width, discrete)
        seed = Streams(given["seed"]).integer("initial weights")
        self.networks = self.algorithm.networks(self.sizes, torch.Generator().manual_seed(seed))
        self.register_buffer("mean", torch.tensor(given["mean"], dtype=torch.float32))
        self.register_buffer("spread", torch.tensor(given["spread"], dtype=torch.float32))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def _forward_train(self, batch: Any, **_: Any) -> dict[str, Any]:
        """Return the loss of the next step, so that its gradients are averaged over learners."""
        encoded = Batch(**{name: batch[name] for name in Batch._fields})
        losses = self.algorithm.losses(self.networks, encoded, step=int(self.step) + 1)
        return {LOSS: sum(losses[1:], start=losses[0]).mean()}

    def _forward(self, batch: Any, **_: Any) -> dict[str, Any]:
        """Return the deterministic policy's actions: in [-1, 1], or the environment's integers."""
        observations = batch[Columns.OBS]
        observation_space, action_space = self._spaces
        if isinstance(observation_space, Discrete):
            rows = torch.nn.functional.one_hot(
                observations.long() - int(observation_space.start), int(observation_space.n)
            )
        else:
            rows = observations.reshape(len(observations), -1)
        inputs = (rows.float() - self.mean) / self.spread
        actions = decide(self.algorithm.acting(self.networks), inputs, action_space)
        if isinstance(action_space, Discrete):
            return {Columns.ACTIONS: actions + int(action_space.start)}
        return {Columns.ACTIONS: actions.reshape(-1, *action_space.shape)}

    def policy(self) -> Policy:
        """Return the policy, without RLlib; it shares these weights."""
        return Policy(
            *self.algorithm.acting(self.networks),
            normalisation=Normalisation(
                mean=self.mean.numpy().astype(np.float32),
                spread=self.spread.numpy().astype(np.float32),
            ),
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        )
