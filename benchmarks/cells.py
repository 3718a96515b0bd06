"""What the utility benchmarks share: cells kept by name, a run of the product, the arguments.

A utility benchmark is a table of cells. Each is a run of the product in a work folder, kept as it
ends, so that the same command goes on where it stopped.
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.protocol.registration import settings_hash
from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import register
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.privacy.certificate import Certificate

CONFIGURATIONS = Path(__file__).parent.parent / "tune_configs"
DATA_SEED = 1


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run; a table adds what tells its cells apart: ``epsilon``, and ``seed`` if it has any."""

    @property
    def row(self) -> str:
        """Name of the cells that differ in their seed alone; values by default are left out."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "seed" and getattr(self, field.name) != field.default
        }
        values["epsilon"] = "none" if values["epsilon"] is None else f"{values['epsilon']:g}"
        return "-".join(map(str, values.values()))

    @property
    def name(self) -> str:
        """Name of the cell's files."""
        kept = "".join(letter if letter.isalnum() else "_" for letter in self.row)
        return f"{kept}-{dataclasses.asdict(self)['seed']}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a command share.

    Args:
        work: folder of datasets, runs, ledgers and finished cells.
        data_seed: public seed of the recording.
        changes: ``section.key=value`` of every run.
        cells: folder of finished cells; None: in the work folder.
    """

    work: Path
    data_seed: int
    changes: tuple[str, ...]
    cells: Path | None = None

    @property
    def store(self) -> DatasetStore:
        """The datasets."""
        return store_of(self.work)

    def file_of(self, cell: Cell) -> Path:
        """Return where a finished cell is kept."""
        return file_of(cell, self.work) if self.cells is None else self.cells / f"{cell.name}.json"

    def kept(self, cell: Cell, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what is kept of a cell, or what is made now, and of what it was made.

        Raises:
            ConfigError: the kept cell is of another recording, or of other changes.
        """
        of = {"data_seed": self.data_seed, "changes": list(self.changes)}
        found = kept(self.file_of(cell), lambda: {**make(), **of, "made": made_by()})
        for name, value in of.items():
            if found.get(name, value) != value:
                raise ConfigError(
                    f"{self.file_of(cell)} was made with {name}={found[name]}, not {value}"
                )
        return found


def made_by() -> dict[str, Any]:
    """Return what a cell that is kept on its own says of the machine that made it."""
    about = harness.machine()
    return {name: about[name] for name in ("commit", "date", "processor", "load_at_start")}


def committed(name: str) -> list[dict[str, Any]]:
    """Return the cells that are committed one by one in a benchmark's folder of results."""
    folder = harness.RESULTS / name
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def store_of(work: Path) -> DatasetStore:
    """Return the datasets of a work folder."""
    return DatasetStore(work / "datasets")


def file_of(cell: Cell, work: Path) -> Path:
    """Return where a finished cell is kept."""
    return work / "cells" / f"{cell.name}.json"


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a file holds, or what is made now and kept there."""
    if path.exists():
        return dict(json.loads(path.read_text()))
    found = make()
    write_atomically(path, json.dumps(found))
    return found


def found_of(path: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a kept cell of the same settings; None: there is none."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found if found["settings_sha256"] == settings_hash(settings) else None


def kept_of(
    path: Path, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return a kept cell of the same settings, or what is made now in its place."""
    found = found_of(path, settings)
    if found is not None:
        return found
    path.unlink(missing_ok=True)
    return kept(path, lambda: {**make(), "settings_sha256": settings_hash(settings)})


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run of the product that has ended.

    Args:
        config: of the run.
        certificate: of what it released.
        folder: of its files; without privacy that is the private one.
        cpu_s: CPU seconds it took.
    """

    config: RunConfig
    certificate: Certificate
    folder: Path
    cpu_s: int

    @property
    def cost(self) -> dict[str, float | None]:
        """What it certifies, and the noise of its rounds; None without."""
        stages = self.certificate.stages
        events = [event for stage in stages for event in stage.events]
        noise = [event.noise_multiplier for event in events if event.kind == "poisson_gaussian"]
        return {
            "certified_epsilon": self.certificate.epsilon if stages else None,
            "noise_multiplier": noise[0] if noise else None,
        }


def run_folder(cell: Cell, work: Path) -> Path:
    """Return where the run of a cell lies."""
    return work / "runs" / cell.name


def run_product(cell: Cell, values: Mapping[str, Any], work: Path) -> Finished:
    """Run a cell's configuration with a ledger of its own, or go on with it.

    Args:
        cell: names the run.
        values: of the configuration.
        work: folder of datasets, runs and ledgers.

    Privacy: unit, relation and budget of the configuration; the ledger lies in the work folder.
    """
    config = parse_config(dict(values), source=cell.name)
    ledger = f"sqlite:///{(work / f'{cell.name}.sqlite').absolute()}"
    set_budget(config, store_of(work), ledger)
    out = run_folder(cell, work)
    clock = time.process_time()
    result = program.run(
        config,
        LocalExecutor(),
        out=out,
        ledger_url=ledger,
        store=store_of(work),
        resume=out.exists(),
        progress=harness.heartbeat(work / "logs" / cell.name),
        anyway=True,  # how little is left is what some cells measure
    )
    return Finished(
        config=config,
        certificate=result.certificate,
        folder=out if config.privacy.epsilon is not None else out / "private",
        cpu_s=round(time.process_time() - clock),
    )


def changes_of(
    values: Mapping[str, Any], *, dataset: str, epsilon: float | None, seed: int
) -> list[str]:
    """Return what every cell changes in the configuration ``values`` of `CONFIGURATIONS`.

    The bounds' file is found from wherever the command is run.
    """
    return [
        f"seed={seed}",
        f"data.sensitive={dataset}",
        f"data.bounds={CONFIGURATIONS.parent.absolute() / str(values['data']['bounds'])}",
        "runtime.workers=1",
        "runtime.executor=local",
        f"privacy.epsilon={'null' if epsilon is None else epsilon}",
    ]


def lines_of(
    rows: Sequence[Mapping[str, Any]], cell: type[Cell]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return finished cells by the name of their row, seeds together."""
    names = [field.name for field in dataclasses.fields(cell)]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault(cell(**{name: row[name] for name in names}).row, []).append(row)
    return lines


def add_arguments(parser: argparse.ArgumentParser, *, work: Path | None) -> None:
    """Add the arguments of every utility benchmark; ``work`` is the default folder."""
    where = " (default: the table's name)" if work is None else ""
    parser.add_argument("--work", type=Path, default=work, help=f"kept between commands{where}")
    parser.add_argument("--parallel", type=int, default=2, help="1: in this process")
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")


def seeded_parser(name: str) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark whose cells have seeds of their own."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-seed", type=int, default=DATA_SEED)
    add_arguments(parser, work=Path(name))
    return parser


def add_committed_cells(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of a benchmark whose stored table grows by cells that are committed."""
    parser.add_argument("--first-seed", type=int, default=0, help="leave out the seeds before")
    parser.add_argument(
        "--cells",
        type=Path,
        help="folder of finished cells (default: in the work folder); those in"
        f" benchmarks/results/{name} are committed, and shown by paper_tables",
    )


def run_table(
    name: str,
    wanted: Sequence[Cell],
    run: Callable[[Any], dict[str, Any]],
    result_of: Callable[[Sequence[dict[str, Any]]], harness.Result],
    *,
    options: argparse.Namespace,
    about: Mapping[str, Any],
) -> None:
    """Run the cells that are missing, print the table, and save it where asked.

    Args:
        name: of the benchmark.
        wanted: its cells.
        run: makes a cell's row, or finds it; picklable.
        result_of: makes the table of all rows.
        options: of the command line.
        about: what is saved with the table, beside the scale and the machine.
    """
    about = {"scale": options.scale, **about, **harness.machine()}
    own = functools.partial(_in_this_process, run)
    rows = list(harness.run_cells(wanted, own, parallel=options.parallel))
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(name, result_of(rows), about, folder=folder)


def _in_this_process(run: Callable[[Any], dict[str, Any]], cell: Cell) -> dict[str, Any]:
    torch.set_num_threads(1)
    register()
    return run(cell)
