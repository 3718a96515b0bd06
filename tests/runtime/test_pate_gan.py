"""PATE-GAN on Ray's workers."""

from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core.executor import Executor
from tests.worlds.games import RELEASED, Games


def test_ray_s_workers_give_the_rows_of_this_process(
    tmp_path: Path, ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    world, other = Games(tmp_path).budget(), "intake/other-v0"
    world.run(taught=True)
    world.run(
        "ray",
        taught=True,
        executor=ray_executor,
        runtime__executor="ray",
        output__dataset=other,
    )
    one, same = (
        world.store.read_transitions(name, unit="transition").observations
        for name in (RELEASED, other)
    )
    np.testing.assert_array_equal(one, same)
