"""The server's step: Adam or SGD on one flat vector, fused, and the average of its iterates."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.updates.parameters import read_only_tensor


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
        self._parameter = torch.nn.Parameter(vector, requires_grad=False)
        self._parameter.data = vector
        rate = config.learning_rate
        self._rule: torch.optim.Optimizer = (
            torch.optim.Adam(
                [self._parameter], lr=rate, betas=(config.beta1, config.beta2), fused=True
            )
            if config.rule == "adam"
            else torch.optim.SGD([self._parameter], lr=rate, fused=True)
        )

    def step(self, gradient: Tensor) -> None:
        """Take one step along ``gradient`` ``(P,)`` and move the average."""
        if self._config.schedule == "cosine":
            fraction = min(1.0, self.steps / self._total_steps)
            rate = 0.5 * self._config.learning_rate * (1 + math.cos(math.pi * fraction))
            self._rule.param_groups[0]["lr"] = rate
        self._parameter.grad = gradient
        self._rule.step()
        self._parameter.grad = None
        self.steps += 1
        # Warm-up, so that early averages are not held back by the initial parameters.
        decay = min(self._config.ema_decay, self.steps / (self.steps + 10))
        self.ema.lerp_(self.vector, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        state = self._rule.state.get(self._parameter, {})
        names = ("exp_avg", "exp_avg_sq") if self._config.rule == "adam" else ()
        moments = {name: state.get(name, torch.zeros_like(self.vector)) for name in names}
        return {
            "parameters": self.vector,
            "ema": self.ema,
            **moments,
        }

    def restore(self, tensors: dict[str, Tensor], *, steps: int) -> None:
        """Continue from the tensors of a checkpoint taken after ``steps`` steps.

        They may lie on another device than the vector.
        """
        self.vector.copy_(tensors["parameters"])
        self.ema.copy_(tensors["ema"])
        self.steps = steps
        if steps and self._config.rule == "adam":
            device = self.vector.device
            self._rule.state[self._parameter] = {
                "step": torch.tensor(float(steps), device=device),
                "exp_avg": tensors["exp_avg"].to(device, copy=True),
                "exp_avg_sq": tensors["exp_avg_sq"].to(device, copy=True),
            }


def as_gradient(values: NDArray[np.floating], denominator: float, *, out: Tensor) -> Tensor:
    """Return ``values / denominator`` ``(P,)`` in the dtype and on the device of ``out``.

    Args:
        values: ``(P,)``.
        denominator: the public number of units a round.
        out: ``(P,)``, overwritten; memory used again each round spares page faults, which cost
            several times the division.
    """
    return out.copy_(read_only_tensor(values)).div_(denominator)
