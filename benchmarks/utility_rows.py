"""The rows of the utility table: figures of a release, shares of what real data give, notes."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Result
from benchmarks.ratios import ratio_interval
from benchmarks.utility_cells import Scale, Table
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.metadata import SEAM_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.intervals import FEWEST_RESAMPLED, Interval, mean_interval
from distributed_privrl.evaluation.trajectory_score import TrajectoryScoreConfig
from distributed_privrl.experiments.comparison import score_trajectories
from distributed_privrl.experiments.samples import sampled_rows

_OF_TRAJECTORIES = ("seams inside, between (a step)", "TrajScore (chance, real)")
"""Columns that only trajectories have."""

_REWARDED = 0.5
_SEAMS = ("inside", "at_seams", "of_a_step")


def release_figures(
    store: DatasetStore,
    *,
    real: str,
    synthetic: str,
    public: str,
    maze: Maze | None,
    config: TrajectoryScoreConfig | None = None,
) -> dict[str, Any]:
    """Return how like the real rows a release is; simulated rows, so that it may be shown.

    Args:
        store: datasets.
        real: id of the recorded rows.
        synthetic: id of the release.
        public: id of the rows that TrajScore's autoencoder is trained on.
        maze: of the real rows, if they are one's.
        config: of TrajScore.
    """
    ours, theirs = sampled_rows(store, synthetic), sampled_rows(store, real)
    scores = fidelity(theirs, ours)
    score = score_trajectories(store, real=real, synthetic=synthetic, public=public, config=config)
    info = store.info(synthetic)
    return {
        "marginal": scores.marginal,
        "correlation": scores.correlation,
        "in_walls": None if maze is None else share_in_walls(ours[:, :2], maze),
        "trajectory_score": None if isinstance(score, str) else dataclasses.asdict(score),
        "seams": info.metadata.open(Purpose.RELEASED).get(SEAM_KEY),
    }


def share_in_walls(positions: NDArray[np.floating[Any]], maze: Maze) -> float:
    """Return the share of positions ``(N, 2)`` in cells of the map that are walls.

    Example:
        >>> from distributed_privrl.environments.mazes import MAZES
        >>> share_in_walls(np.array([[-1.0, 1.0], [0.0, 0.0]]), MAZES["umaze"])
        0.5
    """
    return float(np.mean([maze.cells[maze.cell(x, y)] for x, y in positions.tolist()]))


def false_rewards(
    rewards: NDArray[np.floating[Any]], positions: NDArray[np.floating[Any]], maze: Maze
) -> float:
    """Return the share of a maze's rewards that rows have away from the goal; NaN: there is none.

    Args:
        rewards: ``(N,)``.
        positions: ``(N, 2)`` after the step, where alone the maze rewards.
        maze: of the rows.
    """
    rewarded = rewards > _REWARDED
    return float((~_arrived(positions, maze))[rewarded].mean()) if rewarded.any() else math.nan


def missed_rewards(
    rewards: NDArray[np.floating[Any]], positions: NDArray[np.floating[Any]], maze: Maze
) -> float:
    """Return the share of rows at the goal that have no reward; NaN: none is. See `false_rewards`.

    Example:
        >>> from distributed_privrl.environments.mazes import MAZES
        >>> goal = np.array([MAZES["umaze"].goal, (5.0, 5.0)])
        >>> missed_rewards(np.array([0.0, 0.0]), goal, MAZES["umaze"])
        1.0
        >>> false_rewards(np.array([1.0, 1.0]), goal, MAZES["umaze"])
        0.5
    """
    arrived = _arrived(positions, maze)
    return float((~(rewards > _REWARDED))[arrived].mean()) if arrived.any() else math.nan


def _arrived(positions: NDArray[np.floating[Any]], maze: Maze) -> NDArray[np.bool_]:
    return np.asarray(maze.rewards(positions, dense=False) > 0)


def agent_columns(
    trainer: str, row: Mapping[str, Any], real: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a line says of one agent: seeds' figures, their mean, its share of real rows'.

    Args:
        trainer: the agent.
        row: finished cell.
        real: cell of the same agents on the real rows; None: there is none.
    """
    ours = row[trainer]
    theirs = real[trainer] if real is not None and ours else []
    share = float(np.mean(ours)) / float(np.mean(theirs)) if theirs else None
    return {
        trainer: float(np.mean(ours)) if ours else None,
        f"{trainer} seeds": ours,
        f"{trainer} 95 %": _shown(mean_interval(ours), ".0f") if ours else None,
        f"{trainer} share": share,
        f"{trainer} share 95 %": _shown(ratio_interval(ours, theirs), ".2f") if theirs else None,
    }


def _shown(interval: Interval | None, numbers: str) -> str:
    return "unknown" if interval is None else format(interval, numbers)


def lines_of(rows: Sequence[Mapping[str, Any]], table: Table, scale: Scale) -> list[dict[str, Any]]:
    """Return the table's lines, shares of the real figure beside the paper's."""
    real = {row["maze"]: row for row in rows if row["variant"] == "real"}
    shown = []
    for row in rows:
        line = _figures(row)
        compared = None if row["variant"] == "real" else real.get(row["maze"])
        for trainer in scale.agents:
            line |= agent_columns(trainer, row, compared)
        line["paper, iql share"] = (
            table.paper.get((row["maze"], row["epsilon"])) if row["variant"] == "ours" else None
        )
        line["cpu min"] = round((row["release_cpu_s"] + row["agents_cpu_s"]) / 60, 1)
        shown.append(line)
    empty = {name for name in _OF_TRAJECTORIES if all(line[name] is None for line in shown)}
    return [{key: value for key, value in line.items() if key not in empty} for line in shown]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line says of the release itself."""
    seams, score = row.get("seams"), row.get("trajectory_score")
    if seams is not None:
        errors = ["-" if seams[name] is None else f"{seams[name]:.3f}" for name in _SEAMS]
        seams = f"{errors[0]}, {errors[1]} ({errors[2]})"
    if score is not None:
        score = f"{score['score']:.3f} ({score['chance_high']:.3f}, {score['ceiling']:.3f})"
    return {
        "maze": row["maze"],
        "variant": row["variant"],
        "unit": row.get("unit"),
        "epsilon": row["epsilon"],
        "delta": row.get("delta"),
        "z": row.get("noise_multiplier"),
        "marginal": row.get("marginal"),
        "correlation": row.get("correlation"),
        "in walls": row.get("in_walls"),
        **dict(zip(_OF_TRAJECTORIES, (seams, score), strict=True)),
    }


def result_of(
    rows: Sequence[Mapping[str, Any]], table: Table, scale: Scale, wanted: int, command: str
) -> Result:
    """Return the table and its ratios; ``command`` makes one cell of it again."""
    shown = lines_of(rows, table, scale)
    ratios = {
        f"{line['maze']}_eps{line['epsilon']:g}_{trainer}": line[f"{trainer} share"]
        for line in shown
        if line["variant"] == "ours" and line["epsilon"] is not None
        for trainer in scale.agents
    }
    notes = [
        f"{scale.steps:,} transitions a maze{_episodes(scale)}; {scale.synthetic:,} synthetic rows;"
        f" {scale.seeds} agent seeds, one generator a cell;"
        f" {len(rows)} of {wanted} cells are done.",
        f"Ours is {table.method}, its unit the {table.unit_of('ours')}. 'In walls' is the share of"
        " synthetic states inside a wall, where no real one is.",
        "Figures are normalised returns (0 the random policy, 100 the planner, or a recording's"
        " last policy where there is none), the mean of the last evaluations; shares are of the"
        " same agents on the real rows. 95 %: of the mean over agent seeds, by Student's t below"
        f" {FEWEST_RESAMPLED} of them; of a share by Fieller's theorem, unknown where that is"
        " unbounded. It is the agents' spread: one generator a cell says nothing of another's.",
        f"Agents: {json.dumps(dict(scale.agents))}, {scale.agent_steps:,} steps.",
        f"Generator: {json.dumps(scale.overrides)}; changes: {', '.join(scale.changes) or 'none'}.",
        f"One cell again: `python -m {command} --scale cpu"
        " --mazes MAZE --epsilons EPSILON --ablations --work NEW_FOLDER`.",
    ]
    return Result(cells=shown, ratios=ratios, notes=notes, facts={"cells": len(rows)})


def _episodes(scale: Scale) -> str:
    length = scale.episode_steps
    if length is None:
        return ""
    return f" in {scale.steps // length:,} episodes of {length} steps"
