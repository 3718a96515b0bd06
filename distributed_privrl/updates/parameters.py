"""One flat vector behind a module's trainable parameters.

The server steps one tensor, a broadcast is one array, and a worker loads it with one copy.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class FlatParameters:
    """Moves a module's trainable parameters into one contiguous vector, as views of it.

    Those that are not trained, such as a target network's, stay where they are: `fixed`.

    Args:
        module: its parameters are re-pointed; all must share one dtype and device.

    Raises:
        ValueError: no trainable parameter, or mixed dtypes.
    """

    def __init__(self, module: nn.Module) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(f"{type(module).__name__} has no trainable parameter")
        if len({(p.dtype, p.device) for _, p in named}) != 1:
            raise ValueError(f"{type(module).__name__} mixes dtypes or devices")
        self.module = module
        self.fixed = [p.detach() for p in module.parameters() if not p.requires_grad]
        """Parameters that are not trained, in the module's order; `load` writes to them."""
        self.vector = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameter in named:
            stop = start + parameter.numel()
            self.slices[name] = slice(start, stop)
            parameter.data = self.vector[start:stop].view_as(parameter)
            start = stop

    @property
    def dimension(self) -> int:
        """The number of trainable numbers."""
        return self.vector.numel()

    @property
    def shapes(self) -> tuple[tuple[int], tuple[int]]:
        """Of what `load` takes: the trainable numbers, and those with the others behind them."""
        return (self.dimension,), (self.dimension + sum(p.numel() for p in self.fixed),)

    def load(self, values: NDArray[np.floating] | Tensor) -> None:
        """Copy a flat vector into the module.

        Args:
            values: the trainable numbers ``(P,)``, or with those that are not trained behind them
                ``(P + F,)``; without, these stay what they are.

        Raises:
            ValueError: another length.
        """
        source = values if isinstance(values, Tensor) else read_only_tensor(values)
        if source.shape not in self.shapes:
            expected = " or ".join(map(str, dict.fromkeys(self.shapes)))
            raise ValueError(f"parameters have shape {tuple(source.shape)}, not {expected}")
        with torch.no_grad():
            self.vector.copy_(source[: self.dimension])
            start = self.dimension
            for parameter in self.fixed if len(source) > self.dimension else ():
                stop = start + parameter.numel()
                parameter.copy_(source[start:stop].view_as(parameter))
                start = stop

    def fixed_numpy(self) -> NDArray[np.floating]:
        """Return a copy of the numbers that are not trained, ``(F,)``."""
        if not self.fixed:
            return self.numpy()[:0]
        joined: NDArray[np.floating] = torch.cat([p.reshape(-1) for p in self.fixed]).cpu().numpy()
        return joined

    def numpy(self) -> NDArray[np.floating]:
        """Return a read-only view of the vector ``(P,)`` (a copy from other devices)."""
        view: NDArray[np.floating] = self.vector.detach().cpu().numpy().view()
        view.flags.writeable = False
        return view


def read_only_tensor(values: NDArray[np.floating]) -> Tensor:
    """Return a tensor over ``values`` that must only be read; Ray hands out read-only arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)
