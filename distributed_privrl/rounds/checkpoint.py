"""One atomic file: parameters, moments, round number, ledger ids. Never data, indices or keys."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from distributed_privrl.core.errors import StorageError, UnsafeError
from distributed_privrl.core.files import write_atomically

Stage = Literal["pretraining", "rounds", "policy"]


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The public part of a checkpoint.

    Args:
        run_id: the ledger's entry.
        round_index: rounds whose noisy steps the parameters hold.
        block_nonce: the reservation that ends at this checkpoint; empty before the first.
        block_drawn: noise vectors drawn from it.
        stage: what the parameters are: ``pretraining`` (public), ``rounds``, or ``policy`` (trained
            in a model of the rounds).
        noise_source: name of the source of every noise in them; empty without noise.
        coding: digest of the public facts that say what the numbers mean; empty if none is kept.
    """

    run_id: str
    round_index: int
    stage: Stage
    block_nonce: str = ""
    block_drawn: int = 0
    noise_source: str = ""
    coding: str = ""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], state: CheckpointState) -> None:
    """Write both atomically.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    content = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"state": json.dumps(asdict(state))},
    )
    write_atomically(path, content, mode=0o600)  # no certificate covers it yet


def load_checkpoint(
    path: Path, *, run_id: str, stage: Stage, coding: str | None = None
) -> tuple[dict[str, Tensor], CheckpointState]:
    """Return the tensors and the state in ``path``.

    Args:
        path: the file.
        run_id: of the run that it must belong to: what another run drew is charged elsewhere, or
            nowhere.
        stage: that it must have been written by.
        coding: that its numbers must have been learned in; None: any.

    Raises:
        StorageError: the file is damaged or is no checkpoint.
        UnsafeError: it belongs to another run or stage, or was learned in another coding.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state = CheckpointState(**json.loads(file.metadata()["state"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise StorageError(
            f"cannot read the checkpoint {path}: {error}; delete it to start the run anew"
        ) from error
    if (state.run_id, state.stage) != (run_id, stage):
        raise UnsafeError(
            f"the checkpoint {path} is of {state.stage} of {state.run_id}, not of {stage} of"
            f" {run_id}: its cost is not this run's; remove it"
        )
    if coding and not state.coding:
        raise UnsafeError(
            f"{path} was written by an earlier version, which did not keep what its numbers mean:"
            " go on with that version, or start a new run"
        )
    if coding is not None and coding != state.coding:
        raise UnsafeError(
            f"public datasets, spaces or bounds are not those that {path} was made with, and its"
            " numbers would mean something else: bring them back, or start a new run"
        )
    return tensors, state
