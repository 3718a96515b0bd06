"""A gate on a whole run of the expert level: a filter, and rounds of DP-SGD beside it."""

from pathlib import Path

from distributed_privrl.data.store import DatasetStore
from tests.gates.whole_runs import WholeRun, gate_whole_run
from tests.worlds.crowd import EXPERTS, Crowd


def gate_certified_experts(folder: Path, master: DatasetStore) -> None:
    """A run over the crowd of ``master`` does what it certifies, each part on its own trajectories.

    The filter reads each expert's first five trajectories, which rounds must leave out.
    """
    world = Crowd(folder, master)
    asked = {"model__hidden": [32]}  # enough parameters to measure the noise by
    config = world.config(**asked)
    gate_whole_run(
        WholeRun(
            config=config,
            ledger=world.ledger,
            start=lambda: world.run(key=None, **asked),
            stages=["filter", "rounds"],
            units=EXPERTS,
            rows=(False, config.training.rows_per_expert),
        )
    )
