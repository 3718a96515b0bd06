"""Bugs in what happens after a death: what was asked of a dead server is asked again."""

from typing import Any

import pytest

from distributed_privrl.runtime import executor
from distributed_privrl.runtime.executor import RayExecutor


def ray_repeats_calls(patch: pytest.MonkeyPatch) -> None:
    """Ray itself repeats the call of a dead actor."""
    patch.setitem(executor.ACTOR_OPTIONS, "max_task_retries", 1)


def every_lost_call_is_repeated(patch: pytest.MonkeyPatch) -> None:
    """Servers are started as workers are, whose calls may be repeated."""
    right = RayExecutor.start

    def start(self: RayExecutor, worker_cls: type, shards: Any, **options: Any) -> Any:
        return right(self, worker_cls, shards, **(options | {"repeat_lost_calls": True}))

    patch.setattr(RayExecutor, "start", start)
