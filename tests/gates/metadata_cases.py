"""A tiny run of each method, for the gate on metadata."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.store import DatasetStore
from tests.gates.metadata import Case
from tests.worlds import crowd, games, grid, intake, judged, mazes, notes, swings, walks
from tests.worlds.world import World

AGENTS = {"trainers": ["bc"], "steps": 4, "episodes": 1}
"""An evaluation whose agents and reports take a second."""


def _privorl(folder: Path, master: DatasetStore, config: RunConfig) -> Case:
    world = World(folder, master).afford(config)
    return Case(
        store=world.store,
        sensitive=config.data.sensitive,
        start=lambda progress, executor=None: world.start(
            config, progress=progress, executor=executor
        ),
    )


def _ready(world: World, **run: Any) -> Case:
    return Case(
        store=world.store,
        sensitive=world.dataset,
        start=lambda progress, executor=None: world.run(
            key=None, progress=progress, executor=executor, **run
        ),
    )


def _expert(folder: Path, master: DatasetStore) -> Case:
    evaluation = {"episodes": 1, "max_steps": 40}
    output = {"output__dataset": "crowd/stable-v0"}
    return _ready(crowd.Crowd(folder, master), evaluation=evaluation, **output)


def _telling(world: World, **run: Any) -> Case:
    world.bounds.write_text(intake.WIDE_BOUNDS)
    return _ready(world.budget(), **run)


def _marginals(folder: Path, master: DatasetStore) -> Case:
    return _telling(intake.Intake(folder, master), training__tables=1)


def _one_shot(method: str) -> Callable[[Path, DatasetStore], Case]:
    return lambda folder, master: _telling(intake.Intake(folder, master, method))


def _pate_gan(*, taught: bool) -> Callable[[Path, DatasetStore], Case]:
    return lambda folder, master: _telling(games.Games(folder, master), taught=taught)


def _admissions(folder: Path) -> DatasetStore:
    return intake.telling_store(folder / "datasets")


def _games(folder: Path) -> DatasetStore:
    return games.game_store(folder / "datasets", intake.telling_store)


def _notes(folder: Path) -> DatasetStore:
    return notes.Notes(folder).store


def _grid(folder: Path) -> DatasetStore:
    return grid.Grid(folder).store


def _primorl(folder: Path, master: DatasetStore) -> Case:
    return _ready(swings.Swings(folder, master), evaluation={"episodes": 1, "horizon": 3})


def _value_iteration(method: str) -> Callable[[Path, DatasetStore], Case]:
    values = grid.values(method)
    return lambda folder, master: _ready(grid.Grid(folder, master).budget(), values=values)


CASES: dict[str, tuple[Callable[[Path, DatasetStore], Case], Callable[[Path], DatasetStore]]] = {
    "privorl_n": (
        lambda folder, master: _privorl(folder, master, mazes.config(evaluation=AGENTS)),
        mazes.maze_store,
    ),
    "privorl_ar": (
        lambda folder, master: _privorl(folder, master, mazes.ar_config()),
        mazes.maze_store,
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
    "dp_transformer": (
        lambda folder, master: _privorl(folder, master, walks.token_config()),
        walks.walk_store,
    ),
    "marginals_j": (
        lambda folder, master: _privorl(folder, master, walks.marginals_config(training__tables=1)),
        walks.walk_store,
    ),
    "pate_gan": (_pate_gan(taught=False), _games),
    "pre_pate_gan": (_pate_gan(taught=True), _games),
    "marginals": (_marginals, _admissions),
    **{one: (_one_shot(one), _admissions) for one in ("pgm", "privsyn")},
    "primorl": (_primorl, swings.swing_store),
    "expert": (_expert, crowd.crowd_store),
    "policy_value": (
        lambda folder, master: _ready(judged.Judged(folder, master).budget()),
        lambda folder: judged.Judged(folder).store,
    ),
    "dprft": (lambda folder, master: _ready(notes.Notes(folder, master).budget()), _notes),
    "dp_fine_tuning": (
        lambda folder, master: _ready(notes.LearnedNotes(folder, master).budget()),
        _notes,
    ),
    "apvi": (_value_iteration("apvi"), _grid),
    "vapvi": (_value_iteration("vapvi"), _grid),
}
"""How a run of each method is made in a folder from a store, and the store, which is copied."""
