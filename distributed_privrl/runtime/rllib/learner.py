"""The one Learner: a step of Adam and of the target networks on every minibatch."""

from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.util.metrics import Metric

from distributed_privrl.agents.training import draw_batches, make_optimiser
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.runtime.rllib.module import LOSS, AgentModule
from distributed_privrl.runtime.rllib.rows import ROWS


class Minibatches:
    """A learner's rows, read once and held, and minibatches drawn from them for ever.

    Args:
        rows: ``(N, R)`` encoded.
        module: what they train.
        streams: public random streams of this learner.
    """

    def __init__(self, rows: torch.Tensor, module: AgentModule, streams: Streams) -> None:
        if not len(rows):
            raise ConfigError("a learner got no rows: lower num_learners or export more rows")
        self._batch_size = module.algorithm.config.batch_size
        self._batches = draw_batches(
            rows,
            module.sizes,
            batch_size=self._batch_size,
            noise_width=module.algorithm.noise_width(module.sizes),
            streams=streams,
        )

    def take(self, count: int) -> Iterator[MultiAgentBatch]:
        """Yield ``count`` minibatches."""
        for _ in range(count):
            columns = SampleBatch(next(self._batches)._asdict())
            yield MultiAgentBatch({DEFAULT_MODULE_ID: columns}, env_steps=self._batch_size)


class AgentLearner(TorchLearner):  # type: ignore[misc]
    """Trains an `AgentModule`; each learner holds its share of the rows."""

    iterator: Minibatches | None

    @property
    def _agent(self) -> AgentModule:
        agent: AgentModule = self.module[DEFAULT_MODULE_ID].unwrapped()
        return agent

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register the agent's own optimiser, whose learning rates are the agent's."""
        agent = self._agent
        optimiser = make_optimiser(agent.algorithm, agent.networks)
        parameters = [one for group in optimiser.param_groups for one in group["params"]]
        self.register_optimizer(
            module_id=module_id, optimizer=optimiser, params=parameters, lr_or_lr_schedule=None
        )

    def compute_loss_for_module(self, *, fwd_out: dict[str, Any], **_: Any) -> torch.Tensor:
        """Return the loss that the module has computed."""
        loss: torch.Tensor = fwd_out[LOSS]
        return loss

    def apply_gradients(self, gradients_dict: dict[Any, Any]) -> None:
        """Step, then let the agent move its target networks and learning rates."""
        agent = self._agent
        optimiser = self.get_optimizer(DEFAULT_MODULE_ID)
        optimiser.step()
        agent.step += 1
        agent.algorithm.after_step(
            agent.networks, optimiser, step=int(agent.step), steps=self.config.steps
        )

    def _create_iterator_if_necessary(
        self, *, training_data: Any, num_iters: int, **_: Any
    ) -> Iterator[MultiAgentBatch]:
        """Read this learner's rows at the first call; then draw from memory."""
        if self.iterator is None:
            read = training_data.data_iterators[0].iter_torch_batches(batch_size=None)
            chunks = [chunk[ROWS] for chunk in read] or [torch.empty(0, 0)]
            rows = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
            streams = Streams(self.config.public_seed)
            if begun := int(self._agent.step):
                streams = streams.child(f"from step {begun}")
            if self.config.num_learners > 1:
                streams = streams.child(f"learner {self._learner_index}")
            self.iterator = Minibatches(rows, self._agent, streams)
        return self.iterator.take(num_iters)


def let_discard(*parts: object) -> None:
    """Let metrics of RLlib's objects, which an operator's Prometheus may ask for, count nothing."""
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, Metric):
                value._discard_metric = True
