"""What agents earn on PrivORL-n's synthetic mazes, as a share of what real data give them.

Every cell is a run of the product (ledger, certificate, release) and the agents trained on what it
released. Cells are kept as they end; the same command goes on where it stopped. The mazes of the
table are sensitive one at a time, the other two are public; settings were chosen on D4RL's held-out
``eval-`` mazes alone (``--mazes eval-umaze eval-medium eval-large`` repeats the choice).

Reference: paper 000, section IX-A to C, E, F and appendix I-B.
"""

import argparse
import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import Result
from benchmarks.utility_cells import (
    ABLATIONS,
    PAPER,
    SCALES,
    TABLE_MAZES,
    Cell,
    Scale,
    run_config,
)
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import environment_id, reference_returns, register
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.returns import bootstrap_interval, normalised
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.reports import sampled_rows
from distributed_privrl.experiments.trials import (
    TrialSpec,
    content_of,
    learning_curve,
    run_trials,
)

NAME = "utility_maze2d"


def real_dataset(maze: str) -> str:
    """Return the id of a maze's recorded dataset."""
    return f"maze/{maze}-v0"


def collect_mazes(mazes: Sequence[str], scale: Scale, store: DatasetStore) -> None:
    """Record each maze with the planner, unless it is there."""
    for index, maze in enumerate(mazes):
        if real_dataset(maze) not in store.ids():
            collect(
                f"maze2d-{maze}",
                dataset=real_dataset(maze),
                store=store,
                steps=scale.steps,
                seed=100 + index,
                options={},
            )


def run_cell(
    cell: Cell, scale: Scale, work: Path, *, releases_only: bool = False
) -> dict[str, Any]:
    """Release a dataset (or take the real one), train the agents, and return the cell.

    Args:
        cell: which.
        scale: of everything.
        work: folder of datasets, runs, ledgers and finished cells.
        releases_only: stop before the agents; the cell is not kept, the release is.

    Privacy: unit transition; the ledger lies in ``work``; datasets are simulated, so that the
    comparison with the real rows may be shown.
    """
    torch.set_num_threads(1)
    register()
    path = work / "cells" / f"{cell.name}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    store = DatasetStore(work / "datasets")
    row: dict[str, Any] = {**dataclasses.asdict(cell), "cell": cell.name, "release_cpu_s": 0}
    dataset = real_dataset(cell.maze)
    if cell.variant != "real":
        row |= _release(cell, scale, work, store)
        dataset = cell.output
    if releases_only:
        return {**row, **{trainer: [] for trainer in scale.agents}, "agents_cpu_s": 0}
    clock = time.process_time()
    for trainer, scores in _agents(cell, scale, work, store, dataset).items():
        row[trainer] = scores
    row["agents_cpu_s"] = round(time.process_time() - clock)
    write_atomically(path, json.dumps(row))
    return row


def _release(cell: Cell, scale: Scale, work: Path, store: DatasetStore) -> dict[str, Any]:
    config = parse_config(run_config(cell, scale, keep=work / "pretraining"), source=cell.name)
    ledger = f"sqlite:///{(work / f'{cell.name}.sqlite').absolute()}"
    out = work / "runs" / cell.name
    kept = work / "releases" / f"{cell.name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    clock = time.process_time()
    set_budget(config, store, ledger)
    result = program.run(
        config,
        LocalExecutor(),
        out=out,
        ledger_url=ledger,
        store=store,
        resume=out.exists(),
        progress=_heartbeat(work / "logs" / cell.name),
    )
    real, synthetic = (
        sampled_rows(store, dataset) for dataset in (real_dataset(cell.maze), cell.output)
    )
    scores = fidelity(real, synthetic)
    certificate = result.certificate
    event: Any = certificate.stages[0].events[0] if certificate.stages else None
    found = {
        "certified_epsilon": certificate.epsilon if certificate.stages else None,
        "noise_multiplier": None if event is None else event.noise_multiplier,
        "marginal": scores.marginal,
        "correlation": scores.correlation,
        "release_cpu_s": round(time.process_time() - clock),
    }
    write_atomically(kept, json.dumps(found))
    return found


def _heartbeat(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)

    def show(stage: str, done: int, total: int, note: str = "") -> None:
        path.write_text(f"{stage} {done}/{total} {note}\n")

    return show


def _agents(
    cell: Cell, scale: Scale, work: Path, store: DatasetStore, dataset: str
) -> dict[str, list[float]]:
    """Return the normalised figure of each seed of each trainer."""
    environment = environment_id(cell.maze, dense=False)
    content = content_of(store, dataset)
    specs = [
        TrialSpec(
            root=str(store.root.absolute()),
            dataset=dataset,
            content=content,
            environment=environment,
            trainer=trainer,
            seed=seed,
            steps=scale.agent_steps,
            episodes=scale.episodes,
            options=options,
        )
        for trainer, options in scale.agents.items()
        for seed in range(scale.seeds)
    ]
    trials = run_trials(
        specs,
        LocalExecutor(),
        parallel=1,
        progress=silent,
        kept=work / "agents" / cell.name,
    )
    reference = reference_returns(environment)
    return {
        trainer: [
            normalised(learning_curve(trial).figure(), reference)
            for trial in trials
            if trial["trainer"] == trainer and "failed" not in trial
        ]
        for trainer in scale.agents
    }


def shares(row: Mapping[str, Any], real: Mapping[str, Any], trainer: str) -> dict[str, float]:
    """Return the share of the real-data figure, and its bootstrap interval over both seeds."""
    ours, theirs = np.asarray(row[trainer]), np.asarray(real[trainer])
    generator = Streams(0).numpy(f"bootstrap/{row['cell']}/{trainer}")
    draws = [generator.integers(len(part), size=(10_000, len(part))) for part in (ours, theirs)]
    below = theirs[draws[1]].mean(axis=1)
    ratios = ours[draws[0]].mean(axis=1) / np.where(below > 0, below, np.nan)
    low, high = np.nanquantile(ratios, [0.025, 0.975])
    return {"share": float(ours.mean() / theirs.mean()), "low": float(low), "high": float(high)}


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table's rows, shares of the real figure beside the paper's."""
    real = {row["maze"]: row for row in rows if row["variant"] == "real"}
    shown = []
    for row in rows:
        line: dict[str, Any] = {
            "maze": row["maze"],
            "variant": row["variant"],
            "epsilon": row["epsilon"],
            "z": row.get("noise_multiplier"),
            "marginal": row.get("marginal"),
            "correlation": row.get("correlation"),
        }
        for trainer in ("iql", "td3bc"):
            mean = float(np.mean(row[trainer])) if row[trainer] else None
            low, high = (
                bootstrap_interval(row[trainer], generator=Streams(0).numpy("bootstrap"))
                if row[trainer]
                else (np.nan, np.nan)
            )
            line[trainer] = mean
            line[f"{trainer} 95 %"] = f"{low:.0f} .. {high:.0f}"
            share = None
            if row["maze"] in real and row["variant"] != "real" and row[trainer]:
                share = shares(row, real[row["maze"]], trainer)
            line[f"{trainer} share"] = None if share is None else share["share"]
            line[f"{trainer} share 95 %"] = (
                None if share is None else f"{share['low']:.2f} .. {share['high']:.2f}"
            )
        line["paper, iql share"] = (
            PAPER.get((row["maze"], row["epsilon"])) if row["variant"] == "ours" else None
        )
        line["cpu min"] = round((row["release_cpu_s"] + row["agents_cpu_s"]) / 60, 1)
        shown.append(line)
    return shown


def result_of(rows: Sequence[Mapping[str, Any]], scale: Scale, wanted: int) -> Result:
    """Return the table and its ratios."""
    shown = table(rows)
    ratios = {
        f"{line['maze']}_eps{line['epsilon']:g}_{trainer}": line[f"{trainer} share"]
        for line in shown
        if line["variant"] == "ours" and line["epsilon"] is not None
        for trainer in ("iql", "td3bc")
    }
    notes = [
        f"{scale.steps:,} transitions a maze, delta {scale.delta:g}, unit transition;"
        f" {scale.synthetic:,} synthetic rows; {scale.seeds} agent seeds, one generator a cell;"
        f" {len(rows)} of {wanted} cells are done.",
        "Figures are normalised returns (0 the random policy, 100 the planner), the mean of the"
        " last evaluations; shares are of the same agents on the real rows, with bootstrap"
        " intervals over agent seeds of both sides.",
        f"Agents: {json.dumps(dict(scale.agents))}, {scale.agent_steps:,} steps.",
        f"Generator: {json.dumps(scale.overrides)}.",
        "One cell again: `python -m benchmarks.utility_maze2d --scale cpu --mazes MAZE"
        " --epsilons EPSILON --work NEW_FOLDER`.",
    ]
    return Result(cells=shown, ratios=ratios, notes=notes, facts={"cells": len(rows)})


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most."""
    epsilons = [None if text == "none" else float(text) for text in options.epsilons]
    if not options.no_real:
        yield from (Cell(maze=maze, variant="real", epsilon=None) for maze in options.mazes)
    for epsilon in epsilons:
        for maze in options.mazes:
            yield Cell(maze=maze, variant="ours", epsilon=epsilon)
    for variant in options.ablations:
        yield Cell(maze=options.mazes[0], variant=variant, epsilon=options.ablation_epsilon)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--scale", choices=tuple(SCALES), default="cpu")
    parser.add_argument("--mazes", nargs="+", default=list(TABLE_MAZES))
    parser.add_argument("--epsilons", nargs="*", default=["1", "10", "0.3", "none"])
    parser.add_argument("--ablations", nargs="*", default=[], choices=tuple(ABLATIONS))
    parser.add_argument("--ablation-epsilon", type=float, default=1.0)
    parser.add_argument("--releases", action="store_true", help="make releases, train no agents")
    parser.add_argument("--no-real", action="store_true", help="leave out agents on real rows")
    parser.add_argument("--work", type=Path, default=Path("utility_maze2d"), help="kept between")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="empty the work folder first")
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    if options.fresh:
        shutil.rmtree(options.work, ignore_errors=True)
    scale = SCALES[options.scale].with_overrides(options.overrides)
    about = {"scale": options.scale, "seed": harness.SEED, **harness.machine()}
    wanted = list(cells_of(options))
    everywhere = sorted({maze for cell in wanted for maze in (cell.maze, *cell.public)})
    collect_mazes(everywhere, scale, DatasetStore(options.work / "datasets"))
    rows = list(_all_rows(wanted, scale, options))
    result = result_of(rows, scale, len(wanted))
    harness.publish(
        NAME, result, about, folder=options.out or (harness.RESULTS if options.save else None)
    )


def _all_rows(
    wanted: Sequence[Cell], scale: Scale, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("spawn")
    run = functools.partial(run_cell, releases_only=options.releases)
    with context.Pool(options.parallel, maxtasksperchild=1) as pool:
        jobs = [pool.apply_async(run, (cell, scale, options.work)) for cell in wanted]
        for cell, job in zip(wanted, jobs, strict=True):
            row = job.get()
            print(f"{cell.name}: {json.dumps(row)}", flush=True)
            yield row


if __name__ == "__main__":
    main()
