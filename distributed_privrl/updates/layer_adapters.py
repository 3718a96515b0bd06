"""How a unit's gradient follows from a layer's inputs and output gradients, layer by layer.

A layer that is not here is not known to book-keeping, and its module takes another path.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class LayerAdapter(ABC):
    """Forms units' gradients of a layer's weight; a bias has the sum of the output's gradients.

    Args:
        layer: with a weight, and a bias or none.
    """

    features: ClassVar[int] = 1
    """Axes of the input behind rows and tokens."""

    by_products: ClassVar[bool] = False
    """The weight's gradient is ``G^T A``, so that its norm follows from Gram matrices."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    @classmethod
    def knows(cls, layer: nn.Module) -> bool:
        """Say whether the layer's options leave each row's gradient its own."""
        return True

    @property
    def shape(self) -> torch.Size:
        """Of the weight."""
        return self.layer.get_parameter("weight").shape

    @abstractmethod
    def form(self, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        """Write each unit's gradient of the weight, the sum over its K rows and tokens.

        Args:
            gradients: of the output, ``(U, K, O)``.
            inputs: of the layer, ``(U, K, I)``; ``(U, K)`` where `features` is 0.
            out: ``(U, *weight)``.
            begin: overwrite ``out``; else add to it, as another layer with this weight wrote there.
        """


class LinearAdapter(LayerAdapter):
    """Of ``nn.Linear``, whose weight is ``(O, I)``."""

    by_products = True

    def form(self, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        """Write ``G^T A``; see `LayerAdapter.form`."""
        _multiply(gradients.transpose(1, 2), inputs, out, begin=begin)


class Conv1DAdapter(LayerAdapter):
    """Of the Conv1D of transformers: a linear layer whose weight is ``(I, O)``."""

    def form(self, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        """Write ``A^T G``; see `LayerAdapter.form`."""
        _multiply(inputs.transpose(1, 2), gradients, out, begin=begin)


class LayerNormAdapter(LayerAdapter):
    """Of ``nn.LayerNorm`` over the last axis, whose weight is ``(I,)``."""

    layer: nn.LayerNorm

    @classmethod
    def knows(cls, layer: nn.Module) -> bool:
        """Say whether it is over one axis."""
        return isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1

    def form(self, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        """Write the sum of gradients times normalised inputs; see `LayerAdapter.form`."""
        shape, eps = self.layer.normalized_shape, self.layer.eps
        products = nn.functional.layer_norm(inputs, shape, eps=eps).mul_(gradients)
        if begin:
            torch.sum(products, dim=1, out=out)
        else:
            out += products.sum(dim=1)


class EmbeddingAdapter(LayerAdapter):
    """Of ``nn.Embedding``, whose weight is ``(V, O)`` and whose inputs are numbers of its rows."""

    features = 0
    layer: nn.Embedding

    @classmethod
    def knows(cls, layer: nn.Module) -> bool:
        """Say whether it neither renormalises its weight nor counts tokens over the batch."""
        return (
            isinstance(layer, nn.Embedding)
            and layer.max_norm is None
            and not layer.scale_grad_by_freq
        )

    def form(self, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        """Add each gradient to its token's row, however often it comes; see `LayerAdapter.form`."""
        if begin:
            out.zero_()
        if self.layer.padding_idx is not None:
            padding = inputs == self.layer.padding_idx
            gradients = gradients.masked_fill(padding[..., None], 0)
        units = torch.arange(len(inputs), device=inputs.device)[:, None]
        out.index_put_((units, inputs), gradients, accumulate=True)


ADAPTERS: dict[str, type[LayerAdapter]] = {
    "torch.nn.modules.linear.Linear": LinearAdapter,
    "torch.nn.modules.normalization.LayerNorm": LayerNormAdapter,
    "torch.nn.modules.sparse.Embedding": EmbeddingAdapter,
    "transformers.pytorch_utils.Conv1D": Conv1DAdapter,
}
"""By the full name of a layer's own type, so that no package is imported for it."""


def adapter_of(layer: nn.Module) -> LayerAdapter | None:
    """Return the adapter of a layer, or None where no adapter knows its type and options."""
    own = type(layer)
    adapter = ADAPTERS.get(f"{own.__module__}.{own.__qualname__}")
    return adapter(layer) if adapter is not None and adapter.knows(layer) else None


def _multiply(left: Tensor, right: Tensor, out: Tensor, *, begin: bool) -> None:
    if begin:
        torch.bmm(left, right, out=out)
    else:
        out.baddbmm_(left, right)
