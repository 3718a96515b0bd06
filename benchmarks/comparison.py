"""Every method of tables beside the others: one line a cell, one picture.

    python -m benchmarks.comparison --generators 1
    python -m benchmarks.comparison --tables umaze --agents 2 --attacks --work FOLDER

The cells are those of `benchmarks.utility_tables`: runs of the product, kept as they end in the
work folder; the command goes on where it stopped, and ``--kept`` shows what is there. Cells that
stand in earlier results count where the work folder has none. A cell that was not run is blank.
What a table is worth to an agent is said without seeds: the exact value in ICU-Sepsis, the grid
judge of the utility protocol in mazes.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import utility_tables
from benchmarks.comparison_plot import plot
from benchmarks.comparison_stored import key_of, stored_cells
from benchmarks.harness import Result
from benchmarks.table_figures import FRESH, REAL, shown
from benchmarks.utility_tables import Cell, Command

METHODS = (
    "marginals",
    "pgm",
    "privsyn",
    "privorl_ar",
    "hybrid",
    "dp_transformer",
    "pate_gan",
    "pate_gan_50",
    "pre_pate_gan",
    "privorl_ar_public",
)
MEASURES: Mapping[str, str] = {
    "marginal": "marginal",
    "pairs": "association gap",
    "area": "area s, a, r",
    "false rewards": "rewards false",
    "missed rewards": "rewards missed",
    "exact value": "exact value",
    "grid points": "grid points",
    "grid reach": "grid reach",
    "IQL": "iql",
    "attack": "attack area",
    "TPR at 1 %": "true positives at 0.01",
}
"""Names of columns, and of the figures of a cell that they show."""
USES = ("exact value", "grid points")
"""Figures that say what a policy learned from the rows earns; a table has one of them at most."""
NOTES = (
    "A cell is the median of its generators and their range, of those that have the figure; one"
    " generator says nothing of another's. Cells come from the work folder, and from earlier"
    " results of utility_tables where it has none: commits says which versions made them. A blank"
    " cell was not run; pre_pate_gan and privorl_ar_public have cells where public rows are: in"
    " mazes, where the two other mazes are public.",
    "marginal: 1 - KS of a number, 1 - total variation of a category, mean of the columns."
    " pairs: mean difference of associations, 0 at best. area: of gradient-boosted trees that tell"
    " real from synthetic rows by state, action and reward, .5 at best.",
    "false rewards: rewarded rows that do not lead to the goal; missed: rows that do, and have"
    " none. exact value: survival by value iteration on the rows, solved in the true simulator."
    " grid points: of 100 (0 uniform forces, 100 the planner), by the grid judge of"
    " docs/design/0009-utility-protocol.md, which has no seeds. IQL: where agents were asked for.",
    "real: all rows. fresh real: as many real rows as a release has, the ceiling of a method that"
    " loses nothing; its fidelity is that of one half of the units against the other.",
    "hybrid: privorl_ar pre-trained on marginals that the run releases first. The unit is a"
    " patient, a plane, or a run of 64 steps through a maze (2,000 of them in eval-umaze, the"
    " public one, 15,625 in the others). CPU min and MB are those"
    " of a release, from its configuration to its reports.",
    "attack: area under the ROC curve of the membership attack by loss of privrl audit, members as"
    " positives, units as groups (.5: guessing); TPR: true positives at 1 % false ones (.01:"
    " guessing). Where --attacks asked for them; privsyn has no losses. Intervals are in the JSON.",
)
Row = Mapping[str, Any]


def result_of(wanted: Sequence[Cell], rows: Sequence[Row], *, stored: Sequence[Row] = ()) -> Result:
    """Return a line a table, method and epsilon, blank where no cell of it is there.

    Args:
        wanted: all cells.
        rows: what those that are there found.
        stored: cells of earlier results, which count where ``rows`` have none.
    """
    found: dict[tuple[str, str, float | None], list[Row]] = {
        (cell.table, cell.method, cell.epsilon): [] for cell in wanted
    }
    here = {key_of(row): row for row in rows}
    for key, row in ({key_of(row): row for row in stored} | here).items():
        if key[:3] in found:
            found[key[:3]].append(row)
    tables = list(dict.fromkeys(table for table, _, _ in found))
    found = {key: found[key] for key in sorted(found, key=lambda key: tables.index(key[0]))}
    lines = []
    for (table, method, epsilon), group in found.items():
        others = [key[2] for key, rows in found.items() if key[:2] == (table, method) and rows]
        if others or not lines or (lines[-1]["table"], lines[-1]["method"]) != (table, method):
            lines.append(_line(table, method, epsilon, group))
        else:  # no cell of this method is there: one line says so
            lines[-1]["epsilon"] += f", {epsilon:g}"
    return Result(
        cells=lines,
        ratios={
            f"{table}: {method}, eps {epsilon:g}: {use}": _median(group, use)
            for (table, method, epsilon), group in found.items()
            for use in USES
            if epsilon is not None and _median(group, use) is not None
        },
        notes=NOTES,
        facts={"cells": sum(map(len, found.values())), "wanted": len(wanted)},
        figures={"svg": plot(_series(found), levels=_levels(found))},
    )


def _line(table: str, method: str, epsilon: float | None, group: Sequence[Row]) -> dict[str, Any]:
    """Return a line; figures of what was not run are empty."""
    values = {
        column: _shown([row["figures"].get(name) for row in group])
        for column, name in MEASURES.items()
    }
    seconds = [row["cpu s"] / 60 for row in group if "cpu s" in row]
    return {
        "table": table,
        "method": method,
        "epsilon": "" if epsilon is None else f"{epsilon:g}",
        "generators": len(group),
        **values,
        "CPU min": _shown(seconds),
        "MB": _shown([row.get("memory MB") for row in group]),
        "commits": ", ".join(sorted({row.get("commit", "unknown") for row in group})),
        "runs": {str(row["seed"]): row["figures"] for row in group},
    }


def _shown(values: Sequence[Any]) -> str:
    return "" if all(value is None for value in values) else shown(values)


def _median(group: Sequence[Row], name: str) -> float | None:
    known = [row["figures"][name] for row in group if row["figures"].get(name) is not None]
    return statistics.median(known) if known else None


Groups = Mapping[tuple[str, str, float | None], Sequence[Row]]


def _series(found: Groups) -> dict[tuple[str, str], dict[str, dict[float, float]]]:
    """Return the points of each line by panel, a table and a measure: epsilon to the median."""
    panels: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    for (table, method, epsilon), group in found.items():
        for name in ("association gap", "area s, a, r", *USES):
            value = _median(group, name)
            if value is None or method in (REAL, FRESH) or epsilon is None:
                continue
            panels.setdefault((table, name), {}).setdefault(method, {})[epsilon] = value
    return panels


def _levels(found: Groups) -> dict[tuple[str, str], float]:
    """Return what fresh real rows have in each panel."""
    levels = {}
    for (table, method, _), group in found.items():
        for name in ("association gap", "area s, a, r", *USES):
            value = _median(group, name) if method == FRESH else None
            if value is not None:
                levels[table, name] = value
    return levels


COMMAND = Command(
    name="comparison",
    tables=("icu_sepsis", "fleet", "eval-umaze", "umaze", "medium", "large"),
    methods=METHODS,
    epsilons=("10", "4", "1"),
    generators=3,
    agents=0,
    result=lambda wanted, rows: result_of(wanted, rows, stored=tuple(stored_cells())),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing, print the table, and save it with its picture where asked."""
    utility_tables.run(COMMAND, arguments)


if __name__ == "__main__":
    main()
