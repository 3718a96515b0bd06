"""Random network distillation: how novel a synthetic row is."""

import torch
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.layers import mlp


class RandomNetworkDistillation(nn.Module):
    """Scores rows by how badly a trained predictor imitates a fixed random network on them.

    Args:
        row_width: numbers in a row (R).
        outputs: numbers that the target network gives (d).
        width: width of the hidden layers; the target's are twice as wide.
        clip: rows are cut to [-clip, clip] first, so that no outlier dominates.
        learning_rate: of the predictor's Adam.
        generator: source of the initial weights of both networks.

    Reference: PrivORL, equation 4 and appendix F-B; Burda et al., "Exploration by random network
    distillation" (2019).
    """

    def __init__(
        self,
        row_width: int,
        *,
        outputs: int = 32,
        width: int = 128,
        clip: float = 5.0,
        learning_rate: float = 1e-3,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_positive("row_width", row_width)
        check_positive("outputs", outputs)
        check_positive("clip", clip)
        self.clip = clip
        self.target = mlp((row_width, *(2 * width,) * 3, outputs), generator)
        self.predictor = mlp((row_width, *(width,) * 2, outputs), generator)
        for layer in self.target:
            if isinstance(layer, nn.Linear):
                # Default weights would shrink the signal by sqrt(6) a layer, down to a constant.
                nn.init.orthogonal_(layer.weight, gain=2**0.5, generator=generator)
        self.target.requires_grad_(False)
        self._optimiser = torch.optim.Adam(self.predictor.parameters(), lr=learning_rate)

    @torch.no_grad()
    def scores(self, rows: Tensor) -> Tensor:
        """Return the curiosity score of each row ``(N,)``; ``rows`` are ``(N, R)``."""
        return self._errors(rows)

    def update(self, rows: Tensor) -> Tensor:
        """Return the scores ``(N,)`` of ``rows`` ``(N, R)`` and train the predictor on them."""
        errors = self._errors(rows)
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(errors.mean())
        self._optimiser.step()
        return errors.detach()

    def tensors(self) -> dict[str, Tensor]:
        """Return what goes on with the predictor's training: its weights and Adam's moments.

        The target is not among them: the same generator makes the same one.
        """
        tensors = dict(self.predictor.named_parameters())
        moments = {
            f"{name}.{moment}": value
            for name, parameter in self.predictor.named_parameters()
            for moment, value in self._optimiser.state[parameter].items()
        }
        return {name: value.detach() for name, value in (tensors | moments).items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from ``tensors`` that `tensors` returned."""
        for name, parameter in self.predictor.named_parameters():
            parameter.copy_(tensors[name])
            # Adam keeps its step count on the CPU, its moments beside the weights.
            self._optimiser.state[parameter] = {
                moment: value.to(parameter.device if value.dim() else "cpu", copy=True)
                for moment in ("step", "exp_avg", "exp_avg_sq")
                if (value := tensors.get(f"{name}.{moment}")) is not None
            }

    def _errors(self, rows: Tensor) -> Tensor:
        clipped = rows.clamp(-self.clip, self.clip)
        difference = self.predictor(clipped) - self.target(clipped)
        return torch.as_tensor(difference).square().sum(dim=-1)  # PrivORL, equation 4
