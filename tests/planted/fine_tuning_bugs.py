"""Mistakes that one could make in private rounds over documents."""

from typing import Any

import numpy as np
import pytest

from distributed_privrl.methods.dprft import tokens
from distributed_privrl.methods.dprft.tokens import StoredTexts
from distributed_privrl.updates import book_keeping, gradient


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
    """Each quarter of a unit's gradient has a clip norm of its own."""

    def clip(calls: Any, *, units: Any, clip_norm: float, vectors: Any) -> Any:
        for part in vectors.tensor_split(4, dim=1):
            part.copy_(gradient.clip_rows(part.contiguous(), clip_norm))
        return calls

    patch.setattr(book_keeping, "_clip", clip)
