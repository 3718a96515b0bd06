"""Mistakes that one could make in private rounds over documents."""

from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.methods.dprft import tokens
from distributed_privrl.methods.dprft.tokens import StoredTexts
from distributed_privrl.updates import gradient
from distributed_privrl.updates.gradient import SingleGradients


def every_worker_reads_all(patch: pytest.MonkeyPatch) -> None:
    """Workers do not choose their own units."""
    right = StoredTexts.__call__
    patch.setattr(StoredTexts, "__call__", lambda self, keep=None: right(self))


def a_document_is_a_unit(patch: pytest.MonkeyPatch) -> None:
    """Each document of a person takes part by itself."""
    right = tokens.group_by_unit

    def grouped(rows: Any, valid: Any, units: Any, **named: Any) -> Any:
        return right(rows, valid, units + np.arange(len(units), dtype=np.uint64), **named)

    patch.setattr(tokens, "group_by_unit", grouped)


def each_layer_is_clipped(patch: pytest.MonkeyPatch) -> None:
    """Each parameter has a clip norm of its own."""

    def add(self: SingleGradients, row_losses: Any, *, units: Any, **named: Any) -> Any:
        for unit in range(len(units)):
            loss = row_losses(self._flat.module, units.part(unit, 1)[1]).sum()
            parts = [
                gradient.clip_rows(one.reshape(1, -1), named["clip_norm"])
                for one in torch.autograd.grad(loss, self._parameters)
            ]
            named["total"].add_rows(slice(None), torch.cat(parts, dim=1))
        return []

    patch.setattr(SingleGradients, "add_clipped_gradients", add)
