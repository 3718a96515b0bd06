"""What private votes make of a small language model: its texts beside held-out private ones.

Modules' prose of one family of packages is private, that of another public. A cell is a run of the
product (DP-RFT, Aug-PE or fine-tuning by DP-SGD) at one epsilon from one seed; cells are kept as
they end, and the same command goes on where it stopped. Cells that were not run are empty.

Reference: DP-RFT, section 4.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cells, harness
from benchmarks.harness import Result
from benchmarks.text_judges import RISES, judged
from benchmarks.text_methods import (
    AUG_PE,
    FINE_TUNING,
    PRIVATE,
    PUBLIC,
    REWARDS,
    SHUFFLED,
    UNTUNED,
    Cell,
    texts_of,
)
from benchmarks.text_sides import QUICK, Sides, Sizes
from distributed_privrl.environments import register

NAME = "utility_text"
EPSILONS = (1.0, 4.0, None)
LADDER = (PRIVATE, PUBLIC, SHUFFLED)
"""From the best to the worst."""
UNPAID = (*LADDER, UNTUNED)
"""Rows that no corpus is asked for, or that are the corpus."""
METHODS = (*REWARDS, AUG_PE, FINE_TUNING)
FIGURES = (
    *("similarity", "topic", "frechet", "sentences", "nearest sentence", "sentence frechet"),
    *("next token", "duplicates", "copies", "gate rate"),
)
NOTES = (
    "Means of the seeds that ran; '-': no cell ran, or it has no meaning there. Epsilon 'none' of a"
    " method is NOT private: exact votes of the corpus.",
    "similarity: mean cosine with held-out private texts, of hashed pairs and triples of words;"
    " frechet: distance of these vectors, less is better; topic: mean cosine of hashed single"
    " words, the commonest left out; sentences, nearest sentence, sentence frechet: mean cosine"
    " with all held-out texts and with the nearest, and Frechet distance, of vectors of a sentence"
    " encoder (all-MiniLM-L6-v2); topic and sentences cannot tell shuffled words from text; next"
    " token: share of tokens of held-out private texts that the untuned model guesses once it has"
    " learned from the row's texts. duplicates: share of texts that another one equals; copies:"
    " share of texts with eight words in a row of the corpus that the public side has not; gate"
    " rate: share of texts, as written, that pass; of Aug-PE: of its last population.",
    "No judge is what a reward compares, which are hashed words and pairs of words.",
    "Cells are kept as they end: those of one table may be of several commits.",
    "dp_fine_tuning: private rounds of the model's own loss (DP-SGD); workers read the corpus.",
)


def cells_of(seeds: int) -> list[Cell]:
    """Return all cells that can be run, in the order in which they tell most."""
    found = []
    for seed in range(seeds):
        found += [Cell(method=method, epsilon=None, seed=seed) for method in UNPAID]
        found += _of_methods((1.0, None), seed)
    return found + [cell for seed in range(seeds) for cell in _of_methods((4.0,), seed)]


def _of_methods(budgets: Sequence[float | None], seed: int) -> list[Cell]:
    return [
        Cell(method=method, epsilon=epsilon, seed=seed) for epsilon in budgets for method in METHODS
    ]


def run_cell(cell: Cell, sides: Sides) -> dict[str, Any]:
    """Return a cell: what was kept of it, or what is made now."""
    return cells.kept(cells.file_of(cell, sides.work), lambda: _made(cell, sides))


def _made(cell: Cell, sides: Sides) -> dict[str, Any]:
    made = texts_of(cell, sides)
    figures = judged(made.texts, sides, seed=cell.seed)
    figures["gate rate"] = made.gate_rate
    shown = {"examples": list(made.texts[:3])}
    return {**dataclasses.asdict(cell), "figures": figures, **made.facts, **shown}


def rows_of(wanted: Sequence[Cell], sides: Sides, *, kept: bool) -> list[dict[str, Any]]:
    """Return cells, made where they are missing; those that were made before alone if ``kept``."""
    if kept:
        wanted = [cell for cell in wanted if cells.file_of(cell, sides.work).exists()]
    else:
        sides.work.mkdir(parents=True, exist_ok=True)
        sides.prepare()
    return list(harness.run_cells(wanted, lambda cell: run_cell(cell, sides), parallel=1))


def result_of(rows: Sequence[Mapping[str, Any]]) -> Result:
    """Return the table of what ran, with empty cells for what did not."""
    budgets = sorted(EPSILONS, key=lambda value: value or np.inf)
    wanted: list[tuple[str, float | None]] = [(method, None) for method in UNPAID]
    wanted += [(method, value) for method in METHODS for value in budgets]
    lines = []
    for method, epsilon in wanted:
        of = [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
        lines.append(line_of(method, epsilon, of))
    seeds = [
        {"row": row["method"], "epsilon": _shown(row), "seed": row["seed"], **_figures(row)}
        for row in sorted(rows, key=lambda row: (row["method"], row["epsilon"] or np.inf))
    ]
    each = ("", "Each seed:", "", harness.table(seeds)) if seeds else ()
    return Result(
        cells=lines,
        ratios=ratios_of(lines),
        notes=(*NOTES, *each),
        facts={"ran": len(rows), **verdicts_of(lines)},
    )


def verdicts_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return for each epsilon which methods are better than the untuned model, in each seed.

    By all of `RISES`, and by next tokens alone, the best one first; each run is compared with that
    of the untuned model of its seed.
    """
    (untuned,) = (line for line in lines if line["row"] == UNTUNED)
    on_all, on_tokens = dict[str, list[str]](), dict[str, list[str]]()
    for epsilon in map(_of_method, EPSILONS):
        own = [line for line in lines if line["row"] in METHODS and line["epsilon"] == epsilon]
        own = [line for line in own if line["runs"].keys() & untuned["runs"].keys()]
        own.sort(key=lambda line: -line["next token"])
        names = ({*RISES}, {"next token"})
        on_all[epsilon], on_tokens[epsilon] = (
            [line["row"] for line in own if is_better(line, untuned, some)] for some in names
        )
    return {"better on all in each seed": on_all, "better next tokens in each seed": on_tokens}


def is_better(line: Mapping[str, Any], other: Mapping[str, Any], names: Set[str]) -> bool:
    """Say whether each seed of a line is better than that of another one by all of these."""
    seeds = line["runs"].keys() & other["runs"].keys()
    return all(
        (line["runs"][seed]["figures"][name] > other["runs"][seed]["figures"][name]) == RISES[name]
        for seed in seeds
        for name in names
    )


def ratios_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return for each measure whether it orders the ladder, 1 or 0, and what tuning gains at 1.

    A gain counts from the untuned model (0) to private text itself (1).
    """
    found: dict[str, float | None] = {}
    known = {(line["row"], line["epsilon"]): line for line in lines}
    ladder = [known[name, "-"] for name in LADDER]
    for name, rises in RISES.items():
        values = [line[name] for line in ladder]
        complete = all(value is not None for value in values)
        ordered = values == sorted(values, reverse=rises) if complete else None
        found[f"{name} orders the ladder"] = None if ordered is None else float(ordered)
        for (method, epsilon), line in known.items():
            ends = known[UNTUNED, "-"][name], values[0]
            if method in METHODS and epsilon == "1" and None not in (line[name], *ends):
                found[f"{name} {method}"] = (line[name] - ends[0]) / (ends[1] - ends[0])
    return found


def line_of(method: str, epsilon: float | None, of: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a line of the table: means of its cells."""
    line: dict[str, Any] = {
        "row": method,
        "epsilon": _shown({"method": method, "epsilon": epsilon}),
        "ran": len(of),
    }
    for name in FIGURES:
        values = [row["figures"][name] for row in of if row["figures"][name] is not None]
        line[name] = float(np.mean(values)) if values else None
    line["runs"] = {str(row["seed"]): dict(row) for row in of}
    return line


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row["figures"][name] for name in FIGURES}


def _shown(row: Mapping[str, Any]) -> str:
    return "-" if row["method"] in UNPAID else _of_method(row["epsilon"])


def _of_method(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    options = _parsed(arguments)
    torch.set_num_threads(1)
    register()
    sizes = QUICK if options.scale == "quick" else Sizes()
    sides = Sides(work=options.work, sizes=sizes, seed=cells.DATA_SEED)
    about = {"scale": options.scale, "data_seed": sides.seed, **harness.machine()}
    about["sizes"] = dataclasses.asdict(sizes)
    wanted = [
        cell
        for cell in cells_of(options.seeds)
        if (not options.methods or cell.method in options.methods)
        and (cell.method in UNPAID or _shown(dataclasses.asdict(cell)) in options.epsilons)
    ]
    rows = rows_of(wanted, sides, kept=options.kept)
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result_of(rows), about, folder=folder)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=(*UNPAID, *METHODS), help="default: all")
    budgets = [_of_method(value) for value in EPSILONS]
    parser.add_argument("--epsilons", nargs="+", choices=budgets, default=budgets)
    parser.add_argument("--kept", action="store_true", help="print finished cells, make none")
    parser.add_argument("--work", type=Path, default=Path(NAME), help="kept between commands")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
