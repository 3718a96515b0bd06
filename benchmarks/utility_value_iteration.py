"""What private value iteration loses: figure 1 of DP-VAPVI, and the price in ICU-Sepsis.

The figure is of both synthetic linear MDPs; `benchmarks.sepsis` has the other half, saved as files
of its own.

Policies are valued exactly. Constants are those of the theorems, their leading terms alone, and
tuned ones for every method, tuned on data of their own: the problem is synthetic and public, so
that nothing is charged for it. Noise comes from the seeded source: a run can be repeated.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness, sepsis
from benchmarks.harness import Result
from benchmarks.linear_figure import (
    BUDGETS,
    BY_THEOREM,
    CENTRED_FREE,
    FIGURE_END,
    FULL,
    INSTANCES,
    OURS,
    PAPER,
    PEVI,
    QUICK,
    SPLIT,
    VAPVI,
    curves,
    levers,
    problem,
)
from benchmarks.linear_figure_plot import plot

PANELS = {
    "(a) C = c = 1, D = 0": [
        *(("leading", method.name, None) for method in (PEVI, VAPVI)),
        ("leading", PAPER.name, 5.0),
        ("leading", PAPER.name, 25.0),
        ("leading", OURS.name, 5.0),
    ],
    "(a) tuned constants": [
        *(("tuned", method.name, None) for method in (PEVI, VAPVI)),
        ("tuned", PAPER.name, 5.0),
        ("tuned", PAPER.name, 25.0),
        ("tuned", OURS.name, 5.0),
    ],
    "(b) budgets, tuned, ours": [
        ("tuned", VAPVI.name, None),
        *(("tuned", OURS.name, budget) for budget in BUDGETS),
    ],
}


def run(quick: bool) -> Result:
    """Compute the table, the levers and the plot."""
    scale = QUICK if quick else FULL
    rows, about = [], []
    for method in BY_THEOREM:
        rows += curves(method, "theorem", scale)[0]
    for method in (*BY_THEOREM, *SPLIT, OURS):
        rows += curves(method, "leading", scale)[0]
    for method in (*BY_THEOREM, *SPLIT, OURS, *CENTRED_FREE):
        found, constants = curves(method, "tuned", scale)
        rows += found
        about.append(constants)
    return Result(
        cells=rows,
        ratios=_ratios(rows),
        notes=_notes(about, levers(scale)),
        figures={"png": plot(rows, PANELS, levels=_levels())},
    )


def _levels() -> dict[str, float]:
    return {instance: problem(instance).behaviour_gap for instance in INSTANCES}


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return where DP-VAPVI lies below PEVI, as a part of all K of the figure, and gaps at 1000."""

    def gaps(constants: str, method: str, budget: float | None) -> np.ndarray:
        wanted = (constants, method, budget)
        of = [r for r in rows if (r["constants"], r["method"], r["rho"]) == wanted]
        keys = [key for key in of[0] if key.startswith("K=") and int(key[2:]) <= FIGURE_END]
        return np.array([[row[key] for key in keys] for row in of])

    ratios: dict[str, float | None] = {}
    for constants, method in itertools.product(("leading", "tuned"), (PAPER, OURS)):
        whose = "ours" if method is OURS else "paper"
        base = gaps(constants, PEVI.name, None)
        for budget in BUDGETS:
            found = gaps(constants, method.name, budget)
            ratios[f"below_pevi_{constants}_{whose}_rho_{budget:g}"] = float((found < base).mean())
    for method in (PEVI, VAPVI):
        ratios[f"gap_tuned_{method.name.lower()}"] = float(
            gaps("tuned", method.name, None)[:, -1].mean()
        )
    for method in (PAPER, OURS):
        whose = "ours" if method is OURS else "paper"
        for budget in BUDGETS:
            found = gaps("tuned", method.name, budget)
            ratios[f"gap_tuned_{whose}_rho_{budget:g}"] = float(found[:, -1].mean())
    return ratios


def _notes(about: Sequence[str], lever_rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    values = ", ".join(f"{i}: {problem(i).best:.2f}" for i in INSTANCES)
    behaviour = ", ".join(f"{i}: {level:.2f}" for i, level in _levels().items())
    coverage = ", ".join(f"{i}: {problem(i).coverage:.3f}" for i in INSTANCES)
    return (
        f"Suboptimality, mean of the runs. Optimal values: {values}; behaviour: {behaviour}.",
        "rho: zCDP under replace-one, trajectories as units. Not split unless it says so.",
        "theorem: every term of the theorems, logarithms as 1, smallest eigenvalue of the data on"
        f" the span of the features ({coverage}). leading: C = c = 1, D = 0. tuned:",
        *(f"* {line}" for line in about),
        "ours: values centred in their noisy range, most of the budget for the targets, one"
        " unweighted Gram matrix a step, pooled over steps, ridge matched to the noise; no weaker"
        " guarantee. Centring helps without privacy too (centred): what the ridge pulls to is then"
        " the middle, not 0.",
        "",
        "What helps, constants and ridge tuned for each line and budget:",
        "",
        harness.table(lever_rows),
        "",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both halves, each with files of its own.

    Args:
        arguments: of the command line; None takes the process's.
    """
    harness.main("utility_value_iteration", run, arguments)
    harness.main(sepsis.NAME, sepsis.result, arguments)


if __name__ == "__main__":
    main()
