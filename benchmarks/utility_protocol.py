"""The utility protocol of docs/design/0009-utility-protocol.md, part by part.

``--part ladder`` judges rows whose order is known. ``--part register`` writes the settings and
their hash, to be committed before ``--part pairs`` opens a sensitive maze. Each cell is a small
JSON file in ``benchmarks/results/protocol``, so that cells made on one machine are committed and
the command goes on elsewhere. Cells that were not run are blank in the table.

    python -m benchmarks.utility_protocol --part ladder --mazes eval-umaze --work FOLDER
    python -m benchmarks.utility_protocol --part pairs --mazes umaze --work FOLDER
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks import cells, harness
from benchmarks.harness import Result
from benchmarks.protocol import ladder, ladder_cells, pair_cells
from benchmarks.protocol.ladder import NotAdmittedError
from benchmarks.protocol.ladder_cells import FOLDER, PUBLIC_MAZES
from benchmarks.protocol.pairs import METHODS, REAL, SENSITIVE, Pair, Registered
from benchmarks.protocol.registration import REGISTERED, registered_hash
from benchmarks.protocol.registration import register as register_settings
from benchmarks.protocol.statistics import FEWEST_PAIRS
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.environments import register

NAME = "utility_protocol"


def _ladder(options: argparse.Namespace) -> Result:
    for cell in ladder_cells.cells_of(options.mazes or PUBLIC_MAZES, options.scale):
        if cell.rung in options.rungs:
            row = ladder_cells.run_cell(cell, options.cells, options.work)
            print(f"{cell.name}: {json.dumps(row)}", flush=True)
    shown = PUBLIC_MAZES if options.scale == "cpu" else options.mazes
    return ladder_cells.result_of(ladder_cells.cells_of(shown, options.scale), options.cells)


def _pairs(options: argparse.Namespace) -> Result:
    setting = pair_cells.Setting(folder=options.cells, work=options.work)
    for pair in _wanted(options, options.mazes or SENSITIVE, options.methods, options.pairs):
        try:
            row = pair_cells.run_cell(pair, setting)
        except NotAdmittedError as error:
            print(f"{pair.name}: {error}", flush=True)
        else:
            print(f"{pair.name}: {json.dumps(row)}", flush=True)
    shown = SENSITIVE if options.scale == "cpu" else options.mazes
    kept = pair_cells.kept_pairs(options.scale, options.cells)
    pairs = max(options.pairs, FEWEST_PAIRS, kept)
    return pair_cells.result_of(_wanted(options, shown, METHODS, pairs), setting)


def _check_folder(options: argparse.Namespace) -> None:
    """Raise UnsafeError where the committed folder has these settings, and another one is asked."""
    if options.cells.resolve() == FOLDER.resolve() or not (FOLDER / REGISTERED).exists():
        return
    if registered_hash(FOLDER) == Registered(scale=options.scale).digest:
        raise UnsafeError(
            f"these settings are registered in {FOLDER}, and a figure is made once: leave out"
            " --cells"
        )


def _wanted(
    options: argparse.Namespace, mazes: Sequence[str], methods: Iterable[str], pairs: int
) -> list[Pair]:
    """Return real rows and releases, pair after pair of a maze."""
    variants = [(REAL, None), *((method, float(options.epsilon)) for method in methods)]
    return [
        Pair(scale=options.scale, maze=maze, variant=variant, epsilon=epsilon, seed=seed)
        for maze in mazes
        for seed in range(pairs)
        for variant, epsilon in variants
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the cells that are missing and print the table, or register the settings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility_protocol")
    parser.add_argument("--part", choices=("ladder", "register", "pairs"), required=True)
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument("--mazes", nargs="+", choices=(*SENSITIVE, *PUBLIC_MAZES))
    parser.add_argument("--rungs", nargs="*", default=ladder.RUNGS, choices=ladder.RUNGS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=tuple(METHODS))
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS, help="of each maze")
    parser.add_argument("--epsilon", default="1", help="of pairs")
    parser.add_argument("--work", type=Path, default=Path(NAME), help="kept between commands")
    parser.add_argument("--cells", type=Path, default=FOLDER, help="folder of finished cells")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    if options.part == "ladder" and set(options.mazes or ()) & set(SENSITIVE):
        parser.error(f"a ladder's mazes are public: choose from {', '.join(PUBLIC_MAZES)}")
    torch.set_num_threads(1)
    register()
    if options.part != "ladder":
        _check_folder(options)
    if options.part == "register":
        digest = register_settings(Registered(scale=options.scale).settings, options.cells)
        print(f"registered {digest}: commit {options.cells} before pairs are made")
        return
    ladder_part = options.part == "ladder"
    result = _ladder(options) if ladder_part else _pairs(options)
    name = ladder_cells.NAME if ladder_part else pair_cells.NAME
    seed = {"data_seed": cells.DATA_SEED} if ladder_part else {}
    about = {"scale": options.scale, **seed, **harness.machine()}
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(name, result, about, folder=folder)


if __name__ == "__main__":
    main()
