"""What a run would send to other processes, noted down: arguments of workers and servers."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup


class _Sent(cloudpickle.Pickler):
    """Pickles what Ray would; a group is a handle there, and holds no worker."""

    def persistent_id(self, obj: Any) -> str | None:
        return "group" if isinstance(obj, LocalWorkerGroup) else None


def sent(value: Any) -> bytes:
    """Return a value as it would be sent."""
    buffer = io.BytesIO()
    _Sent(buffer).dump(value)
    return buffer.getvalue()


class _Group(LocalWorkerGroup):
    """Workers in this process; what they are called with is noted down."""

    def __init__(self, workers: Sequence[Any], arguments: list[bytes]) -> None:
        super().__init__(workers)
        self._arguments = arguments

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        self._arguments.append(sent((method, shared, per_worker)))
        return super().call(method, shared, per_worker)


class SendingExecutor(LocalExecutor):
    """Runs workers in this process and keeps, pickled, what each was built from and called with."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[bytes] = []

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> LocalWorkerGroup:
        self.arguments += [sent(shard) for shard in shards]
        group = _Group([worker_cls(shard) for shard in shards], self.arguments)
        self._groups.append(group)
        return group
