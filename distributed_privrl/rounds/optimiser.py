"""The server's step: Adam or SGD on one flat vector, fused, and the average of its iterates.

By torch's functions and not by its optimisers, which import torch's compiler where they are made:
a second of a server's start, for what nothing here uses.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.updates.parameters import read_only_tensor

_ADAM_EPSILON = 1e-8
"""Torch's own."""


class ServerOptimiser:
    """Steps a flat vector and keeps its moving average.

    Everything here is post-processing of noisy sums (or public training).

    Args:
        vector: parameters ``(P,)`` on any device, stepped in place.
        config: step sizes and decays.
        total_steps: length of the schedule.
    """

    def __init__(self, vector: Tensor, config: OptimiserConfig, *, total_steps: int) -> None:
        self.vector = vector
        self.ema = vector.clone()
        self.steps = 0
        self._config = config
        self._total_steps = max(1, total_steps)
        names = ("exp_avg", "exp_avg_sq") if config.rule == "adam" else ()
        self._moments = {name: torch.zeros_like(vector) for name in names}
        self._adam_steps = torch.zeros((), dtype=torch.float32, device=vector.device)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Take one step along ``gradient`` ``(P,)`` and move the average."""
        rate = self._config.learning_rate
        if self._config.schedule == "cosine":
            fraction = min(1.0, self.steps / self._total_steps)
            rate = 0.5 * rate * (1 + math.cos(math.pi * fraction))
        if self._config.rule == "adam":
            adam(
                [self.vector],
                [gradient],
                [self._moments["exp_avg"]],
                [self._moments["exp_avg_sq"]],
                [],
                [self._adam_steps],
                fused=True,
                amsgrad=False,
                beta1=self._config.beta1,
                beta2=self._config.beta2,
                lr=rate,
                weight_decay=0.0,
                eps=_ADAM_EPSILON,
                maximize=False,
            )
        else:
            sgd(
                [self.vector],
                [gradient],
                [],
                fused=True,
                weight_decay=0.0,
                momentum=0.0,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        self.steps += 1
        # Warm-up, so that early averages are not held back by the initial parameters.
        decay = min(self._config.ema_decay, self.steps / (self.steps + 10))
        self.ema.lerp_(self.vector, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        return {
            "parameters": self.vector,
            "ema": self.ema,
            **self._moments,
        }

    def restore(self, tensors: dict[str, Tensor], *, steps: int) -> None:
        """Continue from the tensors of a checkpoint taken after ``steps`` steps.

        They may lie on another device than the vector.
        """
        self.vector.copy_(tensors["parameters"])
        self.ema.copy_(tensors["ema"])
        self.steps = steps
        if steps:
            self._adam_steps.fill_(steps)
            for name, moment in self._moments.items():
                moment.copy_(tensors[name])


def as_gradient(values: NDArray[np.floating], denominator: float, *, out: Tensor) -> Tensor:
    """Return ``values / denominator`` ``(P,)`` in the dtype and on the device of ``out``.

    Args:
        values: ``(P,)``.
        denominator: the public number of units a round.
        out: ``(P,)``, overwritten; memory used again each round spares page faults, which cost
            several times the division.
    """
    return out.copy_(read_only_tensor(values)).div_(denominator)
