"""Tables from simulators: patients of ICU-Sepsis, runs through mazes, HalfCheetah's replay."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import CONFIGURATIONS
from benchmarks.tables.relations import mean_length, share, terminated_share
from benchmarks.tables.rows import Naming
from benchmarks.tables.source import RecordedTable
from benchmarks.utility_rows import false_rewards, missed_rewards, share_in_walls
from benchmarks.utility_tasks import TASKS
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.environments.sepsis import DEATH, SURVIVAL

Flags = NDArray[np.bool_]
"""``(rows,)``."""

EPISODE_STEPS = 64
"""Of a run through a maze: 1,000,000 steps are 15,625 people, each with so many rows."""
STAY_ROWS = 8
"""A step is four hours; what the simulator knows of a patient is a day and a half, about."""


def _survival_is_rewarded(rows: Rows) -> float:
    ended = rows.frame["reward"].to_numpy()[rows.frame["terminated"].to_numpy(float) == 1]
    return float(((ended == 0) | (ended == 1)).mean()) if len(ended) else float("nan")


SEPSIS = RecordedTable(
    name="icu_sepsis",
    recipe="icu-sepsis",
    simulator="privrl/ICU-Sepsis-v0",
    columns=Naming(observation=("state",), action=("dose",)),
    recorded_unit="patient_id",
    options={"patients": 20_000},
    quick_options={"patients": 300},
    bounds={"reward": [0, 1]},
    unit_rows=20,
    rows_per_unit=STAY_ROWS,
    value_steps={"reward": 1},
    reward_levels=(0, 1),
    cells={"dose": (), "reward": (), "terminated": ()},
    relations={
        "an end earns 0 or 1": _survival_is_rewarded,
        "rewarded before an end": share(
            lambda rows: (
                (rows.frame["reward"].to_numpy() > 0)
                & (rows.frame["terminated"].to_numpy(float) == 0)
            )
        ),
        "treated after death": share(
            lambda rows: rows.frame["state"].to_numpy(int) >= min(DEATH, SURVIVAL)
        ),
        "steps a stay": mean_length,
    },
    judge="exact",
)


def _maze(name: str, unit: str = TRAJECTORY, *, steps: int = 1_000_000) -> RecordedTable:
    task = TASKS[name]
    maze = task.maze
    assert maze is not None
    height, width = maze.cells.shape
    rows = EPISODE_STEPS if unit == TRAJECTORY else 1
    return RecordedTable(
        name=name if unit == TRAJECTORY else f"{name}_rows",
        recipe=task.recipe,
        simulator=task.environment,
        columns=Naming(observation=("x", "y", "vx", "vy"), action=("ax", "ay")),
        recorded_unit=unit,
        options={"episode_steps": EPISODE_STEPS, "layout": "packed"},
        steps=(steps, 4096),
        bounds={
            "observation": {
                "low": [-width / 2, -height / 2, -6, -6],
                "high": [width / 2, height / 2, 6, 6],
            },
            "action": {"low": -1, "high": 1},
            "reward": [0, 1],
        },
        unit_rows=rows,
        rows_per_unit=rows,
        reward_levels=(0, 1),
        cells={"x": _cuts(width), "y": _cuts(height), "terminated": ()},
        relations={
            "at the goal": share(_rewarded),
            "rewards false": lambda rows: _false_rewards(rows, maze),
            "rewards missed": lambda rows: _missed_rewards(rows, maze),
            "terminated": terminated_share,
            "in walls": lambda rows: share_in_walls(rows.frame[["x", "y"]].to_numpy(), maze),
        },
        judge="agents",
        maze=maze,
        public=task.public,
    )


def _rewarded(rows: Rows) -> Flags:
    return rows.frame["reward"].to_numpy() > 0.5


def _false_rewards(rows: Rows, maze: Maze) -> float:
    return false_rewards(*_rewards_and_places(rows), maze)


def _missed_rewards(rows: Rows, maze: Maze) -> float:
    return missed_rewards(*_rewards_and_places(rows), maze)


def _rewards_and_places(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    frame = rows.frame
    return frame["reward"].to_numpy(), frame[["next_x", "next_y"]].to_numpy()


def _cuts(size: int) -> list[float]:
    return [cut - size / 2 for cut in range(1, size)]


MAZES = tuple(_maze(name) for name in ("umaze", "medium", "large"))
UMAZE_ROWS = _maze("umaze", unit=TRANSITION)
"""The same steps, each another person's."""
EVAL_UMAZE = replace(_maze("eval-umaze", steps=128_000), public=())
"""A public maze, on which settings may be chosen: 2,000 people of 64 steps."""

_JOINTS, _EPISODE = 17, 1000
HALFCHEETAH = RecordedTable(
    name="halfcheetah",
    recipe=TASKS["halfcheetah"].recipe,
    simulator=TASKS["halfcheetah"].environment,
    columns=Naming(
        observation=tuple(f"s{index}" for index in range(_JOINTS)),
        action=tuple(f"a{index}" for index in range(6)),
    ),
    recorded_unit="trajectory",
    options=TASKS["halfcheetah"].options,
    quick_options={"training_steps": 9, "reference_episodes": 1, "snapshots": 1},
    steps=(200_000, 2000),
    bounds=read_yaml(CONFIGURATIONS / "bounds" / "halfcheetah.yaml"),
    unit_rows=_EPISODE,
    rows_per_unit=_EPISODE,
    cells={"s1": (-2, -1, 0, 1, 2), "reward": (0, 2, 4)},
    relations={"terminated": terminated_share},
)
