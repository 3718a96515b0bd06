"""Where a training stopped: parameters, moments and public numbers, in one atomic file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a training needs beside its tensors.

    Args:
        step: steps behind.
        numbers: what else changes from step to step.
        of: digest of what the training is of; another training does not go on from it.
    """

    step: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    of: str = ""


def save_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Write parameters, the optimiser's moments and the state atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    tensors = {f"model/{name}": one.detach() for name, one in model.named_parameters()}
    for index, moments in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser/{index}/{name}": torch.as_tensor(one) for name, one in moments.items()
        }
    kept = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
    document = json.dumps({"step": state.step, "numbers": dict(state.numbers), "of": state.of})
    write_atomically(path, save(kept, metadata={"state": document}), mode=0o600)


def load_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, *, of: str = ""
) -> TrainingState:
    """Put what `save_state` wrote back, and return the state.

    Raises:
        StorageError: the file is damaged, or of another training.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state = TrainingState(**json.loads(file.metadata()["state"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise StorageError(f"cannot read {path}: {error}; delete it to start anew") from error
    if state.of != of:
        raise StorageError(f"{path} is of another training: delete it, or take another folder")
    _restore(tensors, model, optimiser)
    return state


def _restore(
    tensors: Mapping[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model/{name}"])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimiser":
            index, _, moment = rest.partition("/")
            moments.setdefault(int(index), {})[moment] = tensor
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
