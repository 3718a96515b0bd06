"""What PriMORL's policies earn, as a share of what MOPO earns without privacy.

Every cell is a run of the product: private rounds with ledger and certificate, then a policy
trained in the ensemble and tried in the true environment. Its figure is the mean over the last five
evaluations, never the best. A share counts from the return of uniform actions (0) to MOPO's (1,
the better of its rows), for returns that are below zero have no ratio. Cells are kept as they end;
the same command goes on where it stopped. Settings were chosen on data of another seed
(``--data-seed 0``).

Reference: PriMORL, tables 1, 2 and 10, figure 3, appendix L.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import cells, harness
from benchmarks.cells import CONFIGURATIONS
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.methods.primorl.policy_training import CURVE

NAME = "utility_primorl"
LAST = 5
PAPER: Mapping[tuple[str, float], float] = {
    ("pendulum", 5.1): 0.979,
    ("pendulum", 22.3): 1.027,
    ("cartpole_balance", 8.2): 0.777,
    ("cartpole_balance", 85.0): 0.836,
    ("cartpole_swingup", 17.0): 0.8675,
    ("cartpole_swingup", 94.2): 0.9596,
}
"""Share of MOPO's return in PriMORL, table 1, by the epsilon printed there."""

RECIPES = {
    "pendulum": "pendulum-replay",
    "cartpole_balance": "cartpole-balance-replay",
    "cartpole_swingup": "cartpole-swingup-replay",
    "halfcheetah": "halfcheetah-medium-expert",
}
COLLECTION: Mapping[str, Mapping[str, int]] = {
    "halfcheetah": {"training_steps": 20_000, "reference_episodes": 20}
}
"""Options of a recipe whose own take a CPU too long."""
VARIANTS: Mapping[str, Sequence[str]] = {
    "mopo": ("method=mopo", "privacy.epsilon=null", "training.policy.action_repeat=1"),
    "mopo, no recorded rows": (
        "method=mopo",
        "privacy.epsilon=null",
        "training.policy.real_share=0",
    ),
    "ours": (),
    "no privacy": ("privacy.epsilon=null",),
    "no clip": ("privacy.epsilon=null", "training.clip=false"),
    "one training": ("training.policy.restarts=1",),
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
class Cell(cells.Cell):
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


@dataclass(frozen=True, kw_only=True)
class Setting(cells.Setting):
    """What all cells of a command share.

    Args:
        trajectories: recorded ones; None: the recipe's.
    """

    trajectories: int | None

    def dataset(self, task: str, trajectories: int | None = None) -> str:
        """Return the id of a task's recorded trajectories."""
        count = trajectories or self.trajectories
        size = "" if count is None else f"-{count}"
        return f"{task.replace('_', '-')}/replay{size}-seed-{self.data_seed}-v0"


def record(setting: Setting, task: str, trajectories: int | None) -> None:
    """Collect a task's trajectories, unless they are there."""
    store, dataset = setting.store, setting.dataset(task, trajectories)
    if dataset in store.ids():
        return
    count = trajectories or setting.trajectories
    options = dict(COLLECTION.get(task, {}))
    if count is not None:
        options["trajectories"] = count
    if QUICK[0] in setting.changes:
        options |= {"training_steps": 20, "snapshots": 2, "reference_episodes": 2}
    collect(RECIPES[task], dataset=dataset, store=store, seed=setting.data_seed, options=options)


def run_cell(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Run a cell and return its figures, or those that are kept.

    Privacy: unit trajectory; the ledger lies in the work folder; data are simulated, so that
    figures of runs without privacy may be shown.
    """
    return setting.kept(cell, lambda: _figures(cell, setting))


def _figures(cell: Cell, setting: Setting) -> dict[str, Any]:
    trajectories = _trajectories(cell)
    record(setting, cell.task, trajectories)
    run = cells.run_product(cell, values_of(cell, setting, trajectories), setting.work)
    curve = json.loads((run.folder / "checkpoint" / CURVE).read_text())
    means = [float(np.mean(np.array(point["returns"], float))) for point in curve]
    about = setting.store.info(str(run.config.data.sensitive)).metadata.open(Purpose.OWNER)
    return {
        **dataclasses.asdict(cell),
        "return": float(np.mean(means[-LAST:])),
        "worst_of_last": min(means[-LAST:]),
        "random": about["reference_returns"]["random"],
        "expert": about["reference_returns"]["expert"],
        "data": about["reference_returns"]["behaviour"],
        **run.cost,
        "cpu_s": run.cpu_s,
    }


def _trajectories(cell: Cell) -> int | None:
    count, _, what = cell.variant.partition(" ")
    return int(count) if what == "trajectories" else None


def values_of(cell: Cell, setting: Setting, trajectories: int | None) -> dict[str, Any]:
    """Return the configuration of a cell."""
    values = read_yaml(CONFIGURATIONS / f"primorl_{cell.task}.yaml")
    changes = [
        *cells.changes_of(
            values,
            dataset=setting.dataset(cell.task, trajectories),
            epsilon=cell.epsilon,
            seed=cell.seed,
        ),
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
    if cell.variant.startswith("mopo"):  # its own defaults of the ensemble's training
        values["training"] = {"policy": values.get("training", {}).get("policy", {})}
    return with_overrides(values, changes)


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most."""
    for seed in range(options.first_seed, options.seeds):
        for task in options.tasks:
            if not options.no_mopo:
                yield Cell(task=task, variant="mopo", epsilon=None, seed=seed)
            for epsilon in options.epsilons:
                yield Cell(task=task, variant="ours", epsilon=epsilon, seed=seed)
    for row in options.rows:
        if row not in VARIANTS and not row.endswith(" trajectories"):
            raise SystemExit(f"{row!r} is no row: {', '.join(VARIANTS)}, 'K trajectories'")
        private = "privacy.epsilon=null" not in VARIANTS.get(row, ())
        for task in options.tasks:
            for seed in range(options.first_seed, options.seeds):
                epsilon = options.row_epsilon if private else None
                yield Cell(task=task, variant=row, epsilon=epsilon, seed=seed)


def result_of(rows: Sequence[Mapping[str, Any]]) -> harness.Result:
    """Return the table: one line for cells that differ in their seed alone."""
    lines = cells.lines_of(rows, Cell)
    mopo: dict[str, float] = {}
    for group in lines.values():
        task, earned = group[0]["task"], float(np.mean([row["return"] for row in group]))
        if group[0]["variant"].startswith("mopo"):
            mopo[task] = max(earned, mopo.get(task, earned))
    table, ratios = [], {}
    for name, group in lines.items():
        first, returns = group[0], [row["return"] for row in group]
        best = mopo.get(first["task"])
        share = None
        if best is not None:
            share = (float(np.mean(returns)) - first["random"]) / (best - first["random"])
        ratios[name.replace(" ", "_")] = share
        table.append(
            {
                "task": first["task"],
                "row": first["variant"],
                "epsilon": first["epsilon"],
                "certified": first["certified_epsilon"],
                "noise": first["noise_multiplier"],
                "return": float(np.mean(returns)),
                "seeds": returns,
                "share of MOPO": share,
                "data": first["data"],
                "expert": first["expert"],
                "CPU s": round(float(np.mean([row["cpu_s"] for row in group]))),
            }
        )
    printed = "; ".join(f"{task} eps {eps:g}: {share}" for (task, eps), share in PAPER.items())
    return harness.Result(
        cells=table,
        ratios=ratios,
        notes=[
            f"Share in the paper at the epsilon it prints (of returns themselves): {printed}.",
            "A share counts from uniform actions (0) to the better of MOPO's rows (1): recorded"
            " rows take part in training, or actions are held as in ours.",
        ],
        facts={"seeds": max(len(group) for group in lines.values())},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = cells.seeded_parser(NAME)
    parser.add_argument("--tasks", nargs="+", default=["pendulum"], choices=tuple(RECIPES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 0.3, 0.1])
    parser.add_argument("--rows", nargs="*", default=[], help="further rows", metavar="ROW")
    parser.add_argument("--row-epsilon", type=float, default=1.0, help="of the further rows")
    parser.add_argument("--trajectories", type=int, help="recorded ones (default: the recipe's)")
    parser.add_argument("--no-mopo", action="store_true", help="leave out the cells of MOPO")
    cells.add_committed_cells(parser, NAME)
    options = parser.parse_args(arguments)
    quick = options.scale == "quick"
    setting = Setting(
        work=options.work,
        cells=options.cells,
        trajectories=40 if quick else options.trajectories,
        data_seed=options.data_seed,
        changes=(*(QUICK if quick else ()), *options.overrides),
    )
    for task in options.tasks:
        record(setting, task, None)
    cells.run_table(
        NAME,
        list(cells_of(options)),
        functools.partial(run_cell, setting=setting),
        result_of,
        options=options,
        about={"data_seed": options.data_seed},
    )


if __name__ == "__main__":
    main()
