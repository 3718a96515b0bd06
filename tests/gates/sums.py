"""Gates on the sum itself: it moves by what is paid for, and is the same when asked again."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.sampling import UnitPlacement
from distributed_privrl.rounds.worker import LocalUpdateWorker
from tests.gates.system import CLIP_NORM, GateUpdate, System, observe
from tests.updates.rounding import built_to_round_badly


@dataclass(frozen=True)
class WeightLoss:
    """The gradient of row (x,) is x."""

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        return module(rows)[:, 0]


def gate_sums_that_round_badly(system: System) -> None:
    """Rows built so that floats round badly: one that becomes null moves the sum by what is paid.

    They are taken in the attacker's order, and computed one by one.
    """
    values = built_to_round_badly(1024)
    update = GateUpdate(
        network=lambda: nn.Linear(1, 1, bias=False),
        loss=WeightLoss(),
        dtype=torch.float32,
        micro_batch_rows=1,
    )
    sums = []
    for valid in (None, np.arange(1024) != 0):
        run = system.run(
            workers=1,
            blocks=1,
            rounds=1,
            sources=system.units(values[:, None], 1, valid),
            declared_units=1024,
            sampling_probability=1.0,
            update=update,
        )
        with patch.object(UnitPlacement, "slots", lambda _, ids, **__: np.arange(len(ids))):
            sums.append(observe(run).sums[0])
    assert run.mechanism is not None
    paid = run.mechanism.sensitivity(1) - CLIP_NORM
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    assert moved <= values[0] + paid, f"a unit of norm {values[0]} moves the sum by {moved}"


def gate_one_answer(system: System) -> None:
    """A call that is repeated gets the same answer; another draw of noise gets other coins."""
    run = system.run(workers=2, rounds=12, block=5)
    nonces: list[str] = []
    right = LocalUpdateWorker.clipped_sum

    def noted(self: LocalUpdateWorker, parameters: Any, nonce: str) -> Any:
        nonces.append(nonce)
        return right(self, parameters, nonce)

    with patch.object(LocalUpdateWorker, "clipped_sum", noted):
        with run.server() as server:
            server.call("advance", {"rounds": 3})  # the process ends here, without a word
        with run.server() as server:
            server.call("advance", {"rounds": 6})
    drawn = nonces[::2]  # two workers
    assert drawn == nonces[1::2], "workers are told different draws"
    assert len(set(drawn)) == len(drawn) == 9, "another draw of noise has the coins of an old one"

    parameters = run.parameters()
    answers = []
    for _ in range(2):  # as a worker that takes a lost one's place
        workers = LocalExecutor().start(LocalUpdateWorker, run.worker_specs())
        for nonce in ("a/0", "a/0", "a/1"):
            call = {"parameters": parameters, "nonce": nonce}
            answers.append(np.stack([one.copy() for one in workers.call("clipped_sum", call)]))
        workers.close()
    first, again, other, *rest = answers
    same = all(np.array_equal(first, one) for one in (again, *rest[:2]))
    assert same, "a repeated call gets another answer"
    assert np.array_equal(rest[2], other)
    assert not np.array_equal(first, other), "all draws have the same coins"
