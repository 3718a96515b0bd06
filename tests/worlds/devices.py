"""Runs that ask for GPUs, on machines that have none: what they send there, and the refusal."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from tests.worlds.world import World

GPU = {"runtime__gpus_per_worker": 1.0}


class Recorder(LocalExecutor):
    """Notes down what is started where, and starts it on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[type, Any] = {}
        self.devices: dict[type, set[str]] = {}
        """Where a class was to compute, whatever part of its specification says so."""
        self.services: set[type] = set()

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> LocalWorkerGroup:
        self.specs[worker_cls] = shards[0]
        if service:
            self.services.add(worker_cls)
        found = set[str]()
        shards = [_on_cpu(shard, found) for shard in shards]
        if found:
            self.devices[worker_cls] = found
        return super().start(worker_cls, shards)


def _on_cpu(value: Any, found: set[str]) -> Any:
    """Return a specification with ``cpu`` in place of every device in it, which are noted."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in fields(value):
        own = getattr(value, field.name)
        if field.name == "device":
            found.add(own)
            changes[field.name] = "cpu"
        elif (moved := _on_cpu(own, found)) is not own:
            changes[field.name] = moved
    return replace(value, **changes) if changes else value


def recorded(world: World, **changes: Any) -> Recorder:
    """Return what a run that asks for GPUs starts, as if the machine had one; without reports."""
    executor = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        world.run(executor=executor, **GPU, **changes)
    return executor


def check_refused_without_gpu(world: World, **changes: Any) -> None:
    """Check that a run which asks for GPUs ends before anything is charged where there are none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match=r"runtime\.gpus_per_worker=1, but torch sees no GPU"):
            world.run(**GPU, **changes)
    assert world.ledger.entries() == []
