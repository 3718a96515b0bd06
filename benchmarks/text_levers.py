"""What a tuning by votes may do otherwise at epsilon 1, beside Aug-PE and fine-tuning by DP-SGD.

Each lever changes the training alone, so that all cells of a reward have the same epsilon. Sizes
and cells are those of `utility_text`, in whose work folder they are kept as they end.

Reference: DP-RFT, section 4.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import cells, harness, utility_text
from benchmarks.harness import Result
from benchmarks.text_judges import RISES
from benchmarks.text_methods import AUG_PE, FINE_TUNING, LEVERS, PRIVATE, PUBLIC, UNTUNED, Cell
from benchmarks.text_sides import QUICK, Sides, Sizes
from distributed_privrl.environments import register

NAME = "text_levers"
REWARDS = ("dp_votes", "dp_votes_centred")
OTHERS = (AUG_PE, FINE_TUNING)
BEATEN = (UNTUNED, AUG_PE)
EPSILON = 1.0
CHOSEN = ("rate 3e-5", "likelihood 1")
"""Levers that were chosen by their first seed; they have others to confirm them."""
NOTES = (
    "Means of the seeds that ran; columns as in utility_text. A lever differs from the product's"
    " defaults in the options that its line names; epsilon is the same.",
    "Levers were tried with seed 0; those with more seeds were chosen by it, to be confirmed.",
)


def cells_of(seeds: int) -> list[Cell]:
    """Return all cells that can be run: of levers the first seed, of the chosen ones all."""
    found = []
    for seed in range(seeds):
        found += [Cell(method=one, epsilon=None, seed=seed) for one in (PRIVATE, PUBLIC, UNTUNED)]
        found += [Cell(method=one, epsilon=EPSILON, seed=seed) for one in (*REWARDS, *OTHERS)]
    levers = [(one, seed) for one in LEVERS if one for seed in range(seeds)]
    found += [
        Cell(method=REWARDS[1], epsilon=EPSILON, seed=seed, lever=one)
        for one, seed in levers
        if one in CHOSEN or not seed
    ]
    found.append(Cell(method=REWARDS[0], epsilon=EPSILON, seed=0, lever="rate 1e-3"))
    return found


def result_of(rows: Sequence[Mapping[str, Any]]) -> Result:
    """Return the table of what ran, and which lines are better than the untuned model's."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row.get("lever", "")), []).append(row)
    lines = []
    for (method, lever), of in groups.items():
        line = utility_text.line_of(method, of[0]["epsilon"], of)
        lines.append({"row": line.pop("row"), "lever": lever or "-", **line})
    return Result(
        cells=lines,
        ratios=ratios_of(lines),
        notes=NOTES,
        facts={
            "levers": _told(LEVERS),
            **{f"better than {one} in each seed": better_than(lines, one) for one in BEATEN},
        },
    )


def better_than(lines: Sequence[Mapping[str, Any]], row: str) -> dict[str, list[str]]:
    """Return by which measures a line is better than that of a row in each seed that both have."""
    others = [line for line in lines if line["row"] == row]
    return {
        f"{line['row']} {line['lever']}": [
            name for name in RISES if utility_text.is_better(line, other, {name})
        ]
        for other in others
        for line in lines
        if line["epsilon"] != "-" and line["row"] != row and line["runs"].keys() & other["runs"]
    }


def ratios_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what each line gains by each measure, from the untuned model (0) to texts (1)."""
    known = {line["row"]: line for line in lines}
    if UNTUNED not in known or PRIVATE not in known:
        return {}
    found = {}
    for line in lines:
        if line["row"] not in (PRIVATE, PUBLIC, UNTUNED):
            for name in RISES:
                start, end = known[UNTUNED][name], known[PRIVATE][name]
                title = f"{name} {line['row']} {line['lever']}"
                found[title] = (line[name] - start) / (end - start)
    return found


def _told(levers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: dict(changes) for name, changes in levers.items() if name}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    options = _parsed(arguments)
    torch.set_num_threads(1)
    register()
    sizes = QUICK if options.quick else Sizes()
    sides = Sides(work=options.work, sizes=sizes, seed=cells.DATA_SEED)
    about = {"data_seed": sides.seed, **harness.machine(), "sizes": dataclasses.asdict(sizes)}
    wanted = [one for one in cells_of(options.seeds) if _asked(one, options.rows)]
    rows = utility_text.rows_of(wanted, sides, kept=options.kept)
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result_of(rows), about, folder=folder)


def _asked(cell: Cell, rows: Sequence[str] | None) -> bool:
    return rows is None or (cell.lever or cell.method) in rows


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--seeds", type=int, default=5, help="of what has no lever")
    parser.add_argument("--rows", nargs="+", help="methods and levers; default: all")
    parser.add_argument("--quick", action="store_true", help="a handful of documents")
    parser.add_argument("--kept", action="store_true", help="print finished cells, make none")
    parser.add_argument("--work", type=Path, default=Path(utility_text.NAME), help="kept")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
