"""A policy as TorchScript, which ``torch.jit.load`` alone can use."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn

from distributed_privrl.agents.policy import Acting, ActionScale, Policy, decide
from distributed_privrl.core.files import atomic_path
from distributed_privrl.data.spaces import part_width


def export_torchscript(policy: Policy, path: Path) -> None:
    """Write ``policy`` to ``path`` as TorchScript, which ``torch.jit.load`` alone can use.

    The module maps raw observations ``(N, O)``, or ``(N,)`` integers if Discrete, to what
    `Policy.act` returns for them.

    Raises:
        StorageError: the file cannot be written.
    """
    space = policy.observation_space
    discrete = isinstance(space, Discrete)
    shape = (2,) if discrete else (2, part_width(space))
    example = torch.zeros(shape, dtype=torch.int64 if discrete else torch.float32)
    if isinstance(space, Discrete):
        example += int(space.start)
    module = _Deployed(policy).eval()
    with torch.no_grad():
        traced: Any = torch.jit.trace(module, (example,))  # type: ignore[no-untyped-call]
        frozen = torch.jit.freeze(traced)
    buffer = io.BytesIO()
    torch.jit.save(frozen, buffer)
    with atomic_path(path) as temporary:
        temporary.write_bytes(_without_source_paths(buffer.getvalue()))


class _Deployed(nn.Module):
    """A policy as one module: raw observations to raw actions."""

    mean: Tensor
    spread: Tensor
    low: Tensor
    high: Tensor
    table: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._acting = Acting(policy.network, policy.behaviour, policy.threshold)
        self.network, self.behaviour = policy.network, policy.behaviour
        self._observation_space = policy.observation_space
        self._action_space = policy.decided_space
        self._levelled = policy.levels is not None
        sides = {"mean": policy.normalisation.mean, "spread": policy.normalisation.spread}
        if policy.levels is not None:
            sides["table"] = policy.levels.table
        elif not isinstance(policy.action_space, Discrete):
            scale = ActionScale.of(policy.action_space)
            sides |= {"low": scale.low, "high": scale.high}
        for name, side in sides.items():
            self.register_buffer(name, torch.tensor(side))

    def forward(self, observations: Tensor) -> Tensor:
        inputs = observations
        if isinstance(self._observation_space, Discrete):
            start, count = int(self._observation_space.start), int(self._observation_space.n)
            inputs = nn.functional.one_hot(observations - start, count).float()
        inputs = (inputs - self.mean) / self.spread
        decided = decide(self._acting, inputs, self._action_space)
        if self._levelled:
            return self.table[decided]
        if isinstance(self._action_space, Discrete):
            return decided + int(self._action_space.start)
        return (self.low + (decided + 1) / 2 * (self.high - self.low)).clamp(self.low, self.high)


def _without_source_paths(archive: bytes) -> bytes:
    """Return a TorchScript archive without its debug records: they name this machine's folders."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(found, "w") as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry))
    return found.getvalue()
