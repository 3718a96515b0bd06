"""What PriMORL's policies earn, as a share of what MOPO earns without privacy.

Every cell is a run of the product: private rounds with ledger and certificate, then a policy
trained in the ensemble and tried in the true environment. Its figure is the mean over the last five
evaluations, never the best. A share counts from the return of uniform actions (0) to MOPO's (1),
for returns that are below zero have no ratio. Cells are kept as they end; the same command goes on
where it stopped. Settings were chosen on data of another seed (``--data-seed 0``).

Reference: paper 001, tables 1, 2 and 10, figure 3, appendix L.
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.config import read_yaml, with_overrides
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import register
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.primorl.policy_training import CURVE

NAME = "utility_primorl"
CONFIGURATIONS = Path(__file__).parent.parent / "tune_configs"
LAST = 5
DATA_SEED = 1
PAPER: Mapping[tuple[str, float], float] = {
    ("pendulum", 5.1): 0.979,
    ("pendulum", 22.3): 1.027,
    ("cartpole_balance", 8.2): 0.777,
    ("cartpole_balance", 85.0): 0.836,
    ("cartpole_swingup", 17.0): 0.8675,
    ("cartpole_swingup", 94.2): 0.9596,
}
"""Share of MOPO's return in paper 001, table 1, by the epsilon printed there."""

RECIPES = {
    "pendulum": "pendulum-replay",
    "cartpole_balance": "cartpole-balance-replay",
    "cartpole_swingup": "cartpole-swingup-replay",
}
VARIANTS: Mapping[str, Sequence[str]] = {
    "mopo": ("method=mopo", "privacy.epsilon=null"),
    "ours": (),
    "no privacy": ("privacy.epsilon=null",),
    "no clip": ("privacy.epsilon=null", "training.clip=false"),
    "paper's rounds": (
        "training.rounds=7000",
        "training.expected_batch_size=30",
        "training.clip_norm=1.0",
        "training.optimiser.rule=sgd",
        "training.optimiser.learning_rate=1.0",
        "training.optimiser.schedule=constant",
        "training.local.batch_size=16",
        "training.local.projection=batch",
        "training.local.clipping=per_layer",
    ),
    **{
        f"{clipping}, {penalty}": (
            f"training.local.clipping={clipping}",
            f"training.policy.penalty={penalty}",
        )
        for clipping in ("concatenated", "flat", "per_layer")
        for penalty in ("max_aleatoric", "max_pairwise_difference")
    },
}
QUICK = (
    "data.units=40",
    "training.rounds=4",
    "training.expected_batch_size=10",
    "training.policy.steps=20",
    "training.policy.hidden=[16]",
    "evaluation.every=10",
    "evaluation.episodes=2",
    "evaluation.horizon=10",
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run.

    Args:
        task: see `RECIPES`.
        variant: see `VARIANTS`, or ``K trajectories``.
        epsilon: None without privacy.
        seed: public seed of the run.
    """

    task: str
    variant: str
    epsilon: float | None
    seed: int

    @property
    def row(self) -> str:
        """Name of the cells that differ in their seed alone."""
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.task}-{self.variant}-{budget}"

    @property
    def name(self) -> str:
        """Name of the cell's files."""
        kept = "".join(letter if letter.isalnum() else "_" for letter in self.row)
        return f"{kept}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a command share.

    Args:
        work: folder of datasets, runs, ledgers and finished cells.
        trajectories: recorded ones; None: the recipe's.
        data_seed: public seed of the recording.
        changes: ``section.key=value`` of every run.
    """

    work: Path
    trajectories: int | None
    data_seed: int
    changes: tuple[str, ...]

    def dataset(self, task: str, trajectories: int | None = None) -> str:
        """Return the id of a task's recorded trajectories."""
        count = trajectories or self.trajectories
        size = "" if count is None else f"-{count}"
        return f"{task.replace('_', '-')}/replay{size}-seed-{self.data_seed}-v0"


def record(setting: Setting, task: str, trajectories: int | None) -> None:
    """Collect a task's trajectories, unless they are there."""
    store = DatasetStore(setting.work / "datasets")
    dataset = setting.dataset(task, trajectories)
    if dataset in store.ids():
        return
    count = trajectories or setting.trajectories
    options = {} if count is None else {"trajectories": count}
    if QUICK[0] in setting.changes:
        options |= {"training_steps": 20, "snapshots": 2, "reference_episodes": 2}
    collect(RECIPES[task], dataset=dataset, store=store, seed=setting.data_seed, options=options)


def run_cell(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Run a cell and return its figures.

    Privacy: unit trajectory; the ledger lies in the work folder; data are simulated, so that
    figures of runs without privacy may be shown.
    """
    torch.set_num_threads(1)
    register()
    path = setting.work / "cells" / f"{cell.name}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    store = DatasetStore(setting.work / "datasets")
    trajectories = _trajectories(cell)
    record(setting, cell.task, trajectories)
    config = parse_config(_values(cell, setting, trajectories), source=cell.name)
    ledger = f"sqlite:///{(setting.work / f'{cell.name}.sqlite').absolute()}"
    if config.privacy.epsilon is not None:
        set_budget(config, store, ledger)
    out = setting.work / "runs" / cell.name
    clock = time.process_time()
    certificate = program.run(
        config,
        LocalExecutor(),
        out=out,
        ledger_url=ledger,
        store=store,
        resume=out.exists(),
        progress=harness.heartbeat(setting.work / "logs" / cell.name),
    ).certificate
    folder = out if config.privacy.epsilon is not None else out / "private"
    curve = json.loads((folder / "checkpoint" / CURVE).read_text())
    means = [float(np.mean(np.array(point["returns"], float))) for point in curve]
    about = store.info(str(config.data.sensitive)).metadata
    event: Any = certificate.stages[0].events[0] if certificate.stages else None
    row = {
        **dataclasses.asdict(cell),
        "return": float(np.mean(means[-LAST:])),
        "worst_of_last": min(means[-LAST:]),
        "random": about["reference_returns"]["random"],
        "expert": about["reference_returns"]["expert"],
        "data": about["reference_returns"]["behaviour"],
        "certified_epsilon": certificate.epsilon if certificate.stages else None,
        "noise_multiplier": None if event is None else event.noise_multiplier,
        "cpu_s": round(time.process_time() - clock),
    }
    write_atomically(path, json.dumps(row))
    return row


def _trajectories(cell: Cell) -> int | None:
    count, _, what = cell.variant.partition(" ")
    return int(count) if what == "trajectories" else None


def _values(cell: Cell, setting: Setting, trajectories: int | None) -> dict[str, Any]:
    values = read_yaml(CONFIGURATIONS / f"primorl_{cell.task}.yaml")
    changes = [
        f"seed={cell.seed}",
        f"data.sensitive={setting.dataset(cell.task, trajectories)}",
        f"data.bounds={_bounds(values)}",
        "runtime.workers=1",
        "runtime.executor=local",
        f"privacy.epsilon={'null' if cell.epsilon is None else cell.epsilon}",
        *VARIANTS.get(cell.variant, ()),
        *setting.changes,
    ]
    if trajectories is not None:
        batch = values.get("training", {}).get("expected_batch_size", 600)
        share = trajectories / values["data"]["units"]
        changes += [
            f"data.units={trajectories}",
            f"training.expected_batch_size={max(1, round(batch * share))}",
        ]
    if cell.variant == "mopo":  # its own defaults of the ensemble's training
        values["training"] = {"policy": values.get("training", {}).get("policy", {})}
    return with_overrides(values, changes)


def _bounds(values: Mapping[str, Any]) -> Path:
    """Return the bounds' file, from wherever the command is run."""
    return CONFIGURATIONS.parent.absolute() / str(values["data"]["bounds"])


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most."""
    for seed in range(options.seeds):
        for task in options.tasks:
            yield Cell(task=task, variant="mopo", epsilon=None, seed=seed)
            for epsilon in options.epsilons:
                yield Cell(task=task, variant="ours", epsilon=epsilon, seed=seed)
    for row in options.rows:
        if row not in VARIANTS and not row.endswith(" trajectories"):
            raise SystemExit(f"{row!r} is no row: {', '.join(VARIANTS)}, 'K trajectories'")
        private = "privacy.epsilon=null" not in VARIANTS.get(row, ())
        for task in options.tasks:
            for seed in range(options.seeds):
                epsilon = options.row_epsilon if private else None
                yield Cell(task=task, variant=row, epsilon=epsilon, seed=seed)


def result_of(rows: Sequence[Mapping[str, Any]]) -> harness.Result:
    """Return the table: one line for cells that differ in their seed alone."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cell = Cell(**{key: row[key] for key in ("task", "variant", "epsilon", "seed")})
        lines.setdefault(cell.row, []).append(row)
    mopo = {
        group[0]["task"]: float(np.mean([row["return"] for row in group]))
        for group in lines.values()
        if group[0]["variant"] == "mopo"
    }
    cells, ratios = [], {}
    for name, group in lines.items():
        first, returns = group[0], [row["return"] for row in group]
        best = mopo.get(first["task"])
        share = None
        if best is not None:
            share = (float(np.mean(returns)) - first["random"]) / (best - first["random"])
        ratios[name.replace(" ", "_")] = share
        cells.append(
            {
                "task": first["task"],
                "row": first["variant"],
                "epsilon": first["epsilon"],
                "certified": first["certified_epsilon"],
                "noise": first["noise_multiplier"],
                "return": float(np.mean(returns)),
                "seeds": ", ".join(f"{value:.0f}" for value in returns),
                "share of MOPO": share,
                "data": first["data"],
                "expert": first["expert"],
                "CPU s": round(float(np.mean([row["cpu_s"] for row in group]))),
            }
        )
    printed = "; ".join(f"{task} eps {eps:g}: {share}" for (task, eps), share in PAPER.items())
    return harness.Result(
        cells=cells,
        ratios=ratios,
        notes=[
            f"Share in the paper at the epsilon it prints (of returns themselves): {printed}.",
            "A share counts from uniform actions (0) to MOPO (1).",
        ],
        facts={"seeds": max(len(group) for group in lines.values())},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument("--tasks", nargs="+", default=["pendulum"], choices=tuple(RECIPES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 0.3, 0.1])
    parser.add_argument("--rows", nargs="*", default=[], help="further rows", metavar="ROW")
    parser.add_argument("--row-epsilon", type=float, default=1.0, help="of the further rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trajectories", type=int, help="recorded ones (default: the recipe's)")
    parser.add_argument("--data-seed", type=int, default=DATA_SEED)
    parser.add_argument("--work", type=Path, default=Path(NAME), help="kept between commands")
    parser.add_argument("--parallel", type=int, default=2, help="1: in this process")
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    quick = options.scale == "quick"
    setting = Setting(
        work=options.work,
        trajectories=40 if quick else options.trajectories,
        data_seed=options.data_seed,
        changes=(*(QUICK if quick else ()), *options.overrides),
    )
    about = {"scale": options.scale, "data_seed": options.data_seed, **harness.machine()}
    for task in options.tasks:
        record(setting, task, None)
    run = functools.partial(run_cell, setting=setting)
    rows = list(harness.run_cells(list(cells_of(options)), run, parallel=options.parallel))
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result_of(rows), about, folder=folder)


if __name__ == "__main__":
    main()
