"""A tiny run of each method, for the gate on metadata."""

import shutil
from collections.abc import Callable
from pathlib import Path

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from tests.gates.metadata import Case
from tests.methods import crowd, swings, tiny, walks
from tests.methods.value_iteration import test_run as grid

AGENTS = {"trainers": ["bc"], "steps": 4, "episodes": 1}
"""An evaluation whose agents and reports take a second."""


def _privorl(folder: Path, master: DatasetStore, config: RunConfig) -> Case:
    store = DatasetStore(shutil.copytree(master.root, folder / "datasets"))
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    set_budget(config, store, url)
    return Case(
        store=store,
        sensitive=config.data.sensitive,
        start=lambda progress: program.run(
            config,
            LocalExecutor(),
            out=folder / "run",
            ledger_url=url,
            store=store,
            progress=progress,
        ),
    )


def _expert(folder: Path, master: DatasetStore) -> Case:
    world = crowd.World(folder, master)
    return Case(
        store=world.store,
        sensitive=crowd.DATASET,
        start=lambda progress: world.run(
            key=None,
            output__dataset="crowd/stable-v0",
            evaluation={"episodes": 1, "max_steps": 40},
            progress=progress,
        ),
    )


def _primorl(folder: Path, master: DatasetStore) -> Case:
    world = swings.World(folder, master)
    return Case(
        store=world.store,
        sensitive=swings.DATASET,
        start=lambda progress: world.run(
            key=None, evaluation={"episodes": 1, "horizon": 3}, progress=progress
        ),
    )


def _value_iteration(method: str) -> Callable[[Path, DatasetStore], Case]:
    def case(folder: Path, master: DatasetStore) -> Case:
        shutil.copytree(master.root, folder / "datasets")
        world = grid.World.__new__(grid.World)
        world.folder, world.store = folder, DatasetStore(folder / "datasets")
        world.url = f"sqlite:///{folder / 'ledger.sqlite'}"
        world.ledger = grid.Ledger(world.url)
        world.budget()
        config = grid.parse_config(grid.values(method), source="test")
        return Case(
            store=world.store,
            sensitive=grid.DATASET,
            start=lambda progress: program.run(
                config,
                LocalExecutor(),
                out=folder / "run",
                ledger_url=world.url,
                store=world.store,
                progress=progress,
            ),
        )

    return case


def _grid_store(folder: Path) -> DatasetStore:
    return grid.World(folder).store


CASES: dict[str, tuple[Callable[[Path, DatasetStore], Case], Callable[[Path], DatasetStore]]] = {
    "privorl_n": (
        lambda folder, master: _privorl(folder, master, tiny.config(evaluation=AGENTS)),
        tiny.tiny_store,
    ),
    "privorl_ar": (
        lambda folder, master: _privorl(folder, master, tiny.ar_config()),
        tiny.tiny_store,
    ),
    "privorl_j": (
        lambda folder, master: _privorl(folder, master, walks.config()),
        walks.walk_store,
    ),
    "privorl_j_unet": (
        lambda folder, master: _privorl(
            folder,
            master,
            walks.config(method="privorl_j_unet", model={"width": 8, "depth": 2, "horizon": 8}),
        ),
        walks.walk_store,
    ),
    "privorl_ar_j": (
        lambda folder, master: _privorl(folder, master, walks.ar_config()),
        walks.walk_store,
    ),
    "primorl": (_primorl, swings.swing_store),
    "expert": (_expert, crowd.crowd_store),
    "apvi": (_value_iteration("apvi"), _grid_store),
    "vapvi": (_value_iteration("vapvi"), _grid_store),
}
"""How a run of each method is made in a folder from a store, and the store, which is copied."""
