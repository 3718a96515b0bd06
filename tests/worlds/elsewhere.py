"""A device that is not the CPU, for machines without one: tensors there hold real numbers.

What meets tensors of the CPU there is refused as on a GPU, and NumPy cannot read it; all else is
computed, so that results can be compared. Torch calls the device ``meta``, which no program of ours
uses.
"""

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

STAND_IN = "meta"
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class _There(torch.Tensor):
    """A tensor on the stand-in, its numbers in ``inner``."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "_There":
        made: _There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=STAND_IN,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    if isinstance(value, _There):
        return value.inner
    assert not (isinstance(value, torch.Tensor) and value.is_meta), "it holds no numbers"
    return value


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == STAND_IN


def _check_together(func: Any, tensors: list[torch.Tensor]) -> None:
    """Refuse what a GPU would: single numbers and positions alone may lie on the CPU."""
    for tensor in tensors:
        position = "index" in str(func) and not tensor.is_floating_point()
        if not (isinstance(tensor, _There) or position or tensor.dim() == 0):
            raise RuntimeError(f"{func}: {tuple(tensor.shape)} is on the CPU, others are not")


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = any(isinstance(tensor, _There) for tensor in tensors)
    asked = kwargs.get("device")
    ends_there = there if asked is None else _is_there(asked)
    if asked is not None:
        kwargs = {**kwargs, "device": "cpu"}
    if there and func not in _MOVES:
        _check_together(func, tensors)
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if func == torch.ops.aten.copy_.default:
        return args[0]
    if not ends_there:
        return result
    wrapped = tree_map(
        lambda leaf: _There(leaf) if isinstance(leaf, torch.Tensor) else leaf, result
    )
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Does what Python's side of torch would do past the operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            listed = (torch.tensor(p) if isinstance(p, (tuple, list)) else p for p in places)
            args = (args[0], tuple(listed))
        elif func == torch.Tensor.data.__set__ and isinstance(args[1], _There):
            args[0].inner = args[1].inner
        elif func is torch.tensor and kwargs and _is_there(kwargs.get("device")):
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(STAND_IN)
        elif func is torch.Tensor.tolist:
            return _inner(args[0]).tolist()
        return func(*args, **(kwargs or {}))


@contextmanager
def elsewhere() -> Iterator[str]:
    """Provide the device, and give its name."""
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        _Operations(),
        _Calls(),
    ):
        warnings.filterwarnings("ignore", message=".*which is a no-op")  # here it copies
        optimisers = importlib.import_module("torch.optim.optimizer")
        fused = [*optimisers._get_fused_kernels_supported_devices(), STAND_IN]
        patch.setattr(optimisers, "_get_fused_kernels_supported_devices", lambda: fused)
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # weights that are tied stay so
        try:
            yield STAND_IN
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)
