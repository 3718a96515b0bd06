"""Pairs that are judged: each recording is opened once, each figure made once and committed."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cells, utility_table
from benchmarks.harness import Result
from benchmarks.protocol import grid_judge
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.protocol.ladder import NotAdmittedError
from benchmarks.protocol.ladder_cells import TABLE, admission_of
from benchmarks.protocol.pairs import EPSILON, LADDERS, REAL, Pair
from benchmarks.protocol.registration import begin_once, judge_once, open_set
from benchmarks.protocol.rows import Rows, read_rows
from benchmarks.protocol.statistics import compare
from benchmarks.utility_rows import false_rewards, missed_rewards, share_in_walls
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.evaluation.intervals import Interval

NAME = "utility_protocol_pairs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a command share.

    Args:
        folder: of finished cells, of ladders, of the registration and of the log of openings.
        work: of recordings, runs and ledgers.
    """

    folder: Path
    work: Path


def run_cell(pair: Pair, setting: Setting) -> dict[str, Any]:
    """Return what is kept of a cell, or make and judge it now, and keep it.

    Raises:
        NotAdmittedError: the judge has not ordered the ladders that the maze asks for.
        UnsafeError: the settings are not registered, the epsilon is another, or the cell was begun
            elsewhere or judged before.

    Privacy: unit a transition, its budget the cell's, its ledger in the work folder; recordings are
    simulated, so that figures of real rows may be shown.
    """
    admission_of(LADDERS[pair.maze], pair.scale, setting.folder)
    if pair.sensitive and pair.epsilon not in (None, EPSILON):
        raise UnsafeError(f"epsilon in {pair.maze} is {EPSILON:g}: try others on public mazes")
    path = setting.folder / f"{pair.name}.json"
    return cells.kept_of(path, pair.settings, lambda: _made(pair, setting))


def _made(pair: Pair, setting: Setting) -> dict[str, Any]:
    store, scale = cells.store_of(setting.work), TABLE.scales[pair.scale]
    task, settings, folder = pair.task, pair.registered.settings, setting.folder
    assert task.maze is not None
    if pair.sensitive:
        open_set(f"{task.recipe}/{pair.recording_seed}", settings, folder)
    if task.dataset not in store.ids():
        collect(
            task.recipe,
            dataset=task.dataset,
            store=store,
            steps=scale.steps,
            seed=pair.recording_seed,
            options=task.options,
        )
    row: dict[str, Any] = {**dataclasses.asdict(pair), "recording": pair.recording_seed}
    dataset = task.dataset
    if pair.variant != REAL:
        utility_table.collect_tasks(pair.public, scale, store)
        if pair.sensitive:
            there = cells.run_folder(pair, setting.work).exists()
            begin_once(pair.name, settings, folder, goes_on=there)
        run = cells.run_product(pair, pair.run_values(), setting.work)
        row |= {**run.cost, "run_cpu_s": run.cpu_s}
        dataset = pair.output
    if pair.sensitive:
        judge_once(pair.name, settings, folder)
    clock = time.process_time()
    rows = read_rows(store, dataset)
    mean, shifts = grid_judge.judge(rows, task.maze, GridSettings())
    return {
        **row,
        "rows": len(rows),
        **dataclasses.asdict(mean),
        "shifts": [one.normalised for one in shifts],
        **_rewards(rows, task.maze),
        "in_walls": share_in_walls(rows.observations[:, :2], task.maze),
        "judge_cpu_s": round(time.process_time() - clock),
        **cells.made_by(),
    }


def _rewards(rows: Rows, maze: Maze) -> dict[str, float | None]:
    """Return the share of rewards that are false, and of rows at the goal that have none."""
    found = {
        name: share(rows.rewards, rows.next_observations[:, :2], maze)
        for name, share in (("rewards_false", false_rewards), ("rewards_missed", missed_rewards))
    }
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def kept_pairs(scale: str, folder: Path) -> int:
    """Return how many pairs of some maze are kept: no figure is left out of a table."""
    names = (path.stem for path in folder.glob(f"pair-{scale}_*-*.json"))
    return max((int(name.rpartition("-")[2]) + 1 for name in names), default=0)


def result_of(wanted: Sequence[Pair], setting: Setting) -> Result:
    """Return the table: a line a maze, method and epsilon, of the pairs that are kept."""
    found = {
        pair: cells.found_of(setting.folder / f"{pair.name}.json", pair.settings) for pair in wanted
    }
    lines = []
    for pair in wanted:
        key = dataclasses.replace(pair, seed=0)
        if pair.variant == REAL or pair != key:
            continue
        alike = [other for other in wanted if dataclasses.replace(other, seed=0) == key]
        both = [
            (row, real)
            for other in alike
            if (row := found[other]) is not None
            and (real := found.get(_real_of(other))) is not None
        ]
        lines.append(_line(key, both, setting))
    return Result(
        cells=lines,
        ratios={},
        facts={"registered": wanted[0].registered.digest},
        notes=[
            "Each pair is a recording of a million transitions and a generator trained on it, whose"
            " release is as large. Both are judged by the grid from the same 200 starts; scores"
            " are points of 100 (0 uniform forces, 100 the planner). Difference and share are of"
            " means over pairs, their intervals Student's and Fieller's for pairs, 95 %; no share"
            " is printed where real rows give fewer than 25. reach: starts from which the goal is"
            " reached; hold: steps spent there afterwards. false, missed: rewards away from the"
            " goal, and rows at the goal without. A blank line was not run.",
        ],
    )


def _real_of(pair: Pair) -> Pair:
    return dataclasses.replace(pair, variant=REAL, epsilon=None)


def _line(
    key: Pair, both: Sequence[tuple[dict[str, Any], dict[str, Any]]], setting: Setting
) -> dict[str, Any]:
    about = {"maze": key.maze, "method": key.variant, "epsilon": key.epsilon, "pairs": len(both)}
    names = (
        "real", "synthetic", "real seeds", "seeds",
        "difference", "difference seeds", "difference 95 %", "share", "share 95 %",
        "reach, real", "reach", "hold, real", "hold", "false", "missed", "in walls", "run cpu s",
    )  # fmt: skip
    try:
        admission = admission_of(LADDERS[key.maze], key.scale, setting.folder)
    except NotAdmittedError as error:
        return {**about, **dict.fromkeys(names, ""), "judge": str(error), "runs": {}}
    if not both:
        return {**about, **dict.fromkeys(names, ""), "judge": "ordered", "runs": {}}
    ours, theirs = ([pair[side] for pair in both] for side in (0, 1))
    found = compare(_of(ours, "normalised"), _of(theirs, "normalised"), admission=admission)
    values = (
        _mean(theirs, "normalised"),
        _mean(ours, "normalised"),
        _of(theirs, "normalised"),
        _of(ours, "normalised"),
        found.difference,
        [mine["normalised"] - real["normalised"] for mine, real in both],
        _shown(found.difference_interval, ".1f"),
        found.share,
        _shown(found.share_interval, ".2f"),
        _mean(theirs, "reach"),
        _mean(ours, "reach"),
        _mean(theirs, "hold"),
        _mean(ours, "hold"),
        _mean(ours, "rewards_false"),
        _mean(ours, "rewards_missed"),
        _mean(ours, "in_walls"),
        _mean(ours, "run_cpu_s"),
    )
    runs = {str(row["seed"]): {"synthetic": row, "real": real} for row, real in both}
    line = dict(zip(names, values, strict=True))
    return {**about, **line, "judge": "ordered", "runs": runs}


def _of(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    values = _of(rows, name)
    return sum(values) / len(values) if values else None


def _shown(interval: Interval | None, form: str) -> str | None:
    return None if interval is None else format(interval, form)
