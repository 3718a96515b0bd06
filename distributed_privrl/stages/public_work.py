"""Public work of a run: pre-training, training in a model, steps on what was released."""

from collections.abc import Callable, Sequence
from typing import Any

from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.stages.context import RunContext

STEPS_A_CALL = 50


def take_steps(
    worker_cls: type,
    specs: Sequence[Any],
    context: RunContext,
    *,
    total: int,
    label: str,
    before: int = 0,
    in_all: int | None = None,
    service: bool = False,
    note: Callable[[WorkerGroup], str] | None = None,
) -> None:
    """Have workers take all their steps, each going on from its last checkpoint.

    Workers have ``progress()``, the steps done, and ``advance(steps)``, which takes some more and
    returns as much.

    Args:
        worker_cls: of the workers.
        specs: what each is built from.
        context: starts them, and is told where they are.
        total: steps of all workers together.
        label: what the progress bar is called.
        before: steps of groups before this one, in the same bar.
        in_all: steps of the whole bar; None: ``total``.
        service: whether the workers wait for others, and need no core of their own.
        note: a short public remark for the bar.

    Raises:
        WorkerLostError: a worker died and did not come back.

    Privacy: the caller's word: what the workers read is public, or was released.
    """
    group = context.executor.start(worker_cls, specs, repeat_lost_calls=True, service=service)
    done = sum(group.call("progress"))
    while done < total:
        done = sum(group.call("advance", {"steps": STEPS_A_CALL}))
        remark = "" if note is None else note(group)
        context.progress(label, before + done, total if in_all is None else in_all, remark)
    group.close()
