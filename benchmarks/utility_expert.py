"""What policies of the expert level earn, as a share of what the agent earns without privacy.

Every cell is a run of the product: stable prefixes and private rounds with ledger and certificate,
then the policy in the default environment. Returns are normalised to 0 (uniform actions) and 1 (the
best policy known), and a share is of the same agent's without privacy, as in the paper. Cells are
kept as they end; the same command goes on where it stopped.

Reference: paper 004, figures 3 and 4, tables 1 to 3; its accounting counts a public coin as
secret (see docs/expert.md), so that its epsilons are larger than printed.
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
from distributed_privrl.methods.expert.report import normalised_return

NAME = "utility_expert"
CONFIGURATIONS = Path(__file__).parent.parent / "tune_configs"
DATA_SEED = 1
EXPERTS = 3000
PAPER: Mapping[tuple[str, str, float], float] = {
    ("cartpole", "discrete_cql", 10.0): 1.03,
    ("cartpole", "discrete_bcq", 10.0): 0.99,
    ("lunarlander", "discrete_cql", 10.0): 0.75,
    ("lunarlander", "discrete_bcq", 10.0): 0.57,
    ("acrobot", "discrete_bcq", 2.5): 0.74,
}
"""Share of the agent's return without privacy in paper 004, table 2, at the epsilon printed."""

VARIANTS: Mapping[str, Sequence[str]] = {
    "non_private": ("privacy.epsilon=null", "output.dataset=null", "training.rounds=2000"),
    "ours": (),
    "dp_sgd": ("filter.share=0", "output.dataset=null"),
    "prefixes alone": ("filter.share=1", "training.stable_steps=10"),
    "paper's thresholds": ("filter.variant=paper",),
    "one row": ("training.rows_per_expert=1",),
    "federated": ("training.local=federated",),
}
ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    "cartpole": (),
    "hiv": (),
    "acrobot": (),
    "lunarlander": (),
}
"""What differs from ``tune_configs/expert_ENVIRONMENT.yaml``."""
QUICK_EXPERTS = 40
QUICK = (
    "training.rounds=4",
    "training.expected_batch_size=20",
    "training.rows_per_expert=2",
    "model.hidden=[8]",
    "filter.draws=3",
    "evaluation.episodes=2",
    "evaluation.max_steps=20",
)
QUICK_DATA = {
    "trajectories": 8,
    "minimum_probability": 0.1,
    "max_length": 12,
    "training": {"updates": 2, "least_updates": 2},
    "reference_episodes": 2,
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run.

    Args:
        environment: see `ENVIRONMENTS`.
        agent: discrete_cql or discrete_bcq.
        variant: see `VARIANTS`.
        epsilon: None without privacy.
        seed: public seed of the run.
    """

    environment: str
    agent: str
    variant: str
    epsilon: float | None
    seed: int

    @property
    def row(self) -> str:
        """Name of the cells that differ in their seed alone."""
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.environment}-{self.agent}-{self.variant}-{budget}"

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
        experts: number of experts (m).
        data_seed: public seed of the recording.
        changes: ``section.key=value`` of every run.
        quick: whether the data are as few as a test needs.
    """

    work: Path
    experts: int
    data_seed: int
    changes: tuple[str, ...]
    quick: bool = False

    def dataset(self, environment: str) -> str:
        """Return the id of an environment's experts."""
        return f"experts/{environment}-{self.experts}-seed-{self.data_seed}-v0"

    @property
    def delta(self) -> float:
        """Of every budget: .9/m, as in the paper's terms (PRIVACY.md has .81/m and .09/m)."""
        return 0.9 / self.experts


def record(setting: Setting, environment: str) -> None:
    """Train and record an environment's experts, unless they are there."""
    store = DatasetStore(setting.work / "datasets")
    if setting.dataset(environment) in store.ids():
        return
    options: dict[str, Any] = {"experts": setting.experts, **(QUICK_DATA if setting.quick else {})}
    collect(
        f"experts-{environment}",
        dataset=setting.dataset(environment),
        store=store,
        seed=setting.data_seed,
        options=options,
    )


def run_cell(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Run a cell and return its figures.

    Privacy: unit expert, relation ``policy_level``; the ledger lies in the work folder; data are
    simulated, so that figures of runs without privacy may be shown.
    """
    torch.set_num_threads(1)
    register()
    path = setting.work / "cells" / f"{cell.name}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    store = DatasetStore(setting.work / "datasets")
    record(setting, cell.environment)
    config = parse_config(values_of(cell, setting), source=cell.name)
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
    found = {one["kind"]: one for one in json.loads((folder / "evaluation.json").read_text())}
    earned = float(np.mean(found["returns"]["returns"]))
    lengths = found["facts"]["lengths"]
    events = [event for stage in certificate.stages for event in stage.events]
    noise = [one.noise_multiplier for one in events if one.kind == "poisson_gaussian"]
    row = {
        **dataclasses.asdict(cell),
        "return": earned,
        "normalised": normalised_return(earned, found["facts"]["references"]),
        "prefixes": None if lengths is None else len(lengths),
        "released_steps": None if lengths is None else sum(lengths),
        "certified_epsilon": certificate.epsilon if certificate.stages else None,
        "noise_multiplier": noise[0] if noise else None,
        "cpu_s": round(time.process_time() - clock),
    }
    write_atomically(path, json.dumps(row))
    return row


def values_of(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Return the configuration of a cell."""
    values = read_yaml(CONFIGURATIONS / f"expert_{cell.environment}.yaml")
    batch, share = values["training"]["expected_batch_size"], setting.experts / EXPERTS
    stable = f"stable/{cell.name.replace('_', '-')}-v0"
    changes = [
        f"seed={cell.seed}",
        f"data.sensitive={setting.dataset(cell.environment)}",
        f"data.units={setting.experts}",
        f"data.bounds={CONFIGURATIONS.parent.absolute() / str(values['data']['bounds'])}",
        "runtime.workers=1",
        "runtime.executor=local",
        f"model.agent={cell.agent}",
        f"training.expected_batch_size={max(1, round(batch * min(share, 1.0)))}",
        f"privacy.epsilon={'null' if cell.epsilon is None else cell.epsilon}",
        f"privacy.delta={setting.delta}",
        f"output.dataset={stable}",
        *ENVIRONMENTS[cell.environment],
        *VARIANTS[cell.variant],
    ]
    if setting.quick:
        changes += [
            f"filter.minimum_probability={QUICK_DATA['minimum_probability']}",
            f"filter.max_length={QUICK_DATA['max_length']}",
            *QUICK,
        ]
    return with_overrides(values, [*changes, *setting.changes])


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most."""
    for seed in range(options.seeds):
        for environment in options.environments:
            for agent in options.agents:
                about = {"environment": environment, "agent": agent, "seed": seed}
                yield Cell(variant="non_private", epsilon=None, **about)
                for epsilon in options.epsilons:
                    for variant in options.variants:
                        yield Cell(variant=variant, epsilon=epsilon, **about)


def result_of(rows: Sequence[Mapping[str, Any]]) -> harness.Result:
    """Return the table: one line for cells that differ in their seed alone."""
    names = [field.name for field in dataclasses.fields(Cell)]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault(Cell(**{name: row[name] for name in names}).row, []).append(row)
    plain = {
        (group[0]["environment"], group[0]["agent"]): _mean(group, "normalised")
        for group in lines.values()
        if group[0]["variant"] == "non_private"
    }
    cells, ratios = [], {}
    for name, group in lines.items():
        first, normalised = group[0], _mean(group, "normalised")
        key = first["environment"], first["agent"]
        best = plain.get(key)
        share = None if not best or normalised is None else normalised / best
        ratios[name.replace(" ", "_")] = share
        paper = PAPER.get((*key, first["epsilon"])) if first["variant"] == "ours" else None
        cells.append(
            {
                "environment": first["environment"],
                "agent": first["agent"],
                "row": first["variant"],
                "epsilon": first["epsilon"],
                "certified": first["certified_epsilon"],
                "noise": first["noise_multiplier"],
                "prefixes (steps)": "-"
                if first["prefixes"] is None
                else f"{_mean(group, 'prefixes'):.0f} ({_mean(group, 'released_steps'):.0f})",
                "return": _mean(group, "return"),
                "seeds": ", ".join(f"{row['return']:.4g}" for row in group),
                "normalised": normalised,
                "share": share,
                "paper": paper,
                "CPU s": round(_mean(group, "cpu_s") or 0),
            }
        )
    return harness.Result(
        cells=cells,
        ratios=ratios,
        notes=[
            "Normalised: 0 uniform actions, 1 the best policy known; a share is of the same agent"
            " without privacy. Cells have one policy a seed, the last one, never the best.",
            "The paper's figures are under its own accounting, which charges a public coin as if"
            " it were secret.",
        ],
        facts={"seeds": max(len(group) for group in lines.values())},
    )


def _mean(group: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in group]
    return None if any(value is None for value in values) else float(np.mean(values))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument(
        "--environments", nargs="+", default=["cartpole"], choices=tuple(ENVIRONMENTS)
    )
    parser.add_argument(
        "--agents",
        nargs="+",
        default=["discrete_cql", "discrete_bcq"],
        choices=("discrete_cql", "discrete_bcq"),
    )
    parser.add_argument("--epsilons", nargs="*", type=float, default=[10.0, 5.0])
    variants = [name for name in VARIANTS if name != "non_private"]
    parser.add_argument("--variants", nargs="*", default=["ours", "dp_sgd"], choices=variants)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--experts", type=int, default=EXPERTS, help="number of experts (m)")
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
        experts=QUICK_EXPERTS if quick else options.experts,
        data_seed=options.data_seed,
        changes=tuple(options.overrides),
        quick=quick,
    )
    about = {"scale": options.scale, "data_seed": options.data_seed, **harness.machine()}
    for environment in options.environments:
        record(setting, environment)
    run = functools.partial(run_cell, setting=setting)
    rows = list(harness.run_cells(list(cells_of(options)), run, parallel=options.parallel))
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result_of(rows), about, folder=folder)


if __name__ == "__main__":
    main()
