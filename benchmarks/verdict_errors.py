"""What a release kept, and how often verdicts and limits of verdicts are wrong about it."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks import harness
from distributed_privrl.stages.verdict import Verdict

STRONG = 0.5
"""Spearman's correlation from which a pair is among the strongest."""
KEPT = 0.5
"""Share of a strong pair's correlation that must come through for it to survive."""
USEFUL = 0.5
"""Share of the strong pairs that must survive for a run to be useful."""
NEAR = 0.15
"""Mean distance of columns (Kolmogorov and Smirnov) up to which they survive."""
_CELLS, _BINS, _NOISE = "cells", "bins of needed", "noise of a round"
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Methods whose verdicts have the same limits.

    Args:
        methods: names of them.
        fine: figure of the verdict that says fine.
        refused: figure that says hopeless.
        sign: 1 where more of a figure is better, -1 where less is.
        words: what the figures are.
    """

    methods: tuple[str, ...]
    fine: str
    refused: str
    sign: float
    words: str


FAMILIES = {
    "marginals": Family(
        methods=("marginals", "marginals_j"),
        fine=_CELLS,
        refused=_BINS,
        sign=1.0,
        words="cells of a joint count that can stand out, and bins of a column, as a multiple of"
        " those that half of its columns need",
    ),
    "rounds": Family(
        methods=("privorl_ar", "privorl_ar_j", "privorl_n"),
        fine=_NOISE,
        refused=_NOISE,
        sign=-1.0,
        words="noise of a round in clip norms",
    ),
}


def figures_of(verdict: Verdict | None) -> dict[str, float | None]:
    """Return the figures that decide on a verdict, by the names that a `Family` has."""
    found = {} if verdict is None else verdict.figures
    bins = found["bins"] / found["bins_needed"] if "bins" in found else None
    return {
        _CELLS: found.get("cells"),
        _BINS: bins,
        _NOISE: found.get("noise_of_a_round"),
    }


def measures(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, float]:
    """Return how far columns are off, and what is kept of the strongest pairs.

    Args:
        real: rows ``(N, D)`` that nobody drew from; what is missing counts in no column and pair.
        synthetic: released rows ``(M, D)``.

    Returns:
        ``KS``: mean distance of the columns, 1 of one that is all missing; ``pairs kept``: share of
        the pairs with a correlation of `STRONG` or more of which at least `KEPT` came through, in
        the same direction.
    """
    distances = [
        stats.ks_2samp(real[name].dropna(), synthetic[name].dropna()).statistic
        if synthetic[name].notna().any()
        else 1.0
        for name in real
    ]
    truth, found = (
        frame.corr(method="spearman", min_periods=2).fillna(0).to_numpy()
        for frame in (real, synthetic)
    )
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(real.shape[1]), 2)
        if abs(truth[i, j]) >= STRONG
    ]
    kept = [found[i, j] / truth[i, j] >= KEPT for i, j in pairs]
    return {"KS": float(np.mean(distances)), "pairs kept": float(np.mean(kept))}


def survives(row: Row) -> bool:
    """Say whether columns survived."""
    return bool(row["KS"] <= NEAR)


def is_useful(row: Row) -> bool:
    """Say whether columns and half of the strongest pairs survived."""
    return survives(row) and bool(row["pairs kept"] >= USEFUL)


def best_limit(rows: Sequence[Row], figure: str, good: Callable[[Row], bool], sign: float) -> float:
    """Return the limit of a figure that sets good runs apart with the fewest errors.

    Args:
        rows: cells of one family.
        figure: name of the figure.
        good: whether a run is on the good side.
        sign: 1 where more of the figure is better, -1 where less is.
    """
    figures = sorted({row[figure] for row in rows})
    between = [float(np.sqrt(a * b)) for a, b in itertools.pairwise(figures)]
    limits = [figures[0] / 2, *between, figures[-1] * 2]

    def errors(limit: float) -> int:
        return sum((sign * row[figure] >= sign * limit) != good(row) for row in rows)

    return min(limits, key=errors)


def safe_limit(rows: Sequence[Row], figure: str, good: Callable[[Row], bool], sign: float) -> float:
    """Return the mildest limit of a figure beyond which every run was good.

    It lies midway, on a scale of factors, between the last run that was not good and the next one.
    Arguments: see `best_limit`.
    """
    ordered = sorted(rows, key=lambda row: sign * row[figure])
    last = max((i for i, row in enumerate(ordered) if not good(row)), default=-1)
    if last < 0:
        return float(ordered[0][figure])
    if last == len(ordered) - 1:
        return float(ordered[-1][figure] * 2**sign)
    return float(np.sqrt(ordered[last][figure] * ordered[last + 1][figure]))


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What limits that were chosen on the other tables get wrong on each table.

    Args:
        limits: by the table that was left out.
        passed: runs on the good side of them.
        passed_wrongly: of these, those that were not good.
        good: good runs in all.
        missed: of these, those on the other side.
    """

    limits: Mapping[str, float]
    passed: int
    passed_wrongly: int
    good: int
    missed: int


def left_out(
    rows: Sequence[Row],
    figure: str,
    good: Callable[[Row], bool],
    sign: float,
    choose: Callable[[Sequence[Row], str, Callable[[Row], bool], float], float],
) -> LeftOut | None:
    """Return the errors of limits on the tables that they were not chosen on; None: one table.

    Args:
        rows: see `best_limit`.
        figure: likewise.
        good: likewise.
        sign: likewise.
        choose: `best_limit` or `safe_limit`.
    """
    tables = list(dict.fromkeys(row["table"] for row in rows))
    if len(tables) < 2:
        return None
    limits = {
        table: choose([row for row in rows if row["table"] != table], figure, good, sign)
        for table in tables
    }
    passed = [row for row in rows if sign * row[figure] >= sign * limits[row["table"]]]
    fit = [row for row in rows if good(row)]
    right = sum(good(row) for row in passed)
    return LeftOut(
        limits=limits,
        passed=len(passed),
        passed_wrongly=len(passed) - right,
        good=len(fit),
        missed=len(fit) - right,
    )


def judged(rows: Sequence[Row]) -> list[Row]:
    """Return the cells that tell of verdicts.

    Those without privacy have none. Where a method is not useful on a table without privacy, noise
    is not what makes it useless.
    """
    able = {(row["table"], row["method"]): is_useful(row) for row in rows if not row["grade"]}
    return [row for row in rows if row["grade"] and able.get((row["table"], row["method"]), True)]


def result_of(rows: Sequence[Row], absent: Sequence[str] = ()) -> harness.Result:
    """Return the table of all cells, and how often verdicts were wrong.

    Args:
        rows: finished cells.
        absent: in words, what was not run.
    """
    ratios: dict[str, float | None] = {}
    own, free = judged(rows), [row for row in rows if not row["grade"]]
    unable = [row for row in free if not is_useful(row)]
    notes = [
        f"{len(rows)} cells. KS: mean distance of the columns from fresh rows. Pairs kept: share of"
        f" the pairs with a correlation of {STRONG:g} or more of which half came through. Columns"
        f" survive if KS is at most {NEAR:g}; a run is useful if they do, and half of these pairs"
        " are kept.",
        f"{len(free)} cells are without privacy. Not useful even so:"
        f" {_named(unable)}; the"
        f" {len(rows) - len(free) - len(own)} other cells of these are shown, and not counted"
        " below.",
    ]
    refused = [row for row in own if row["grade"] == "hopeless"]
    fine = [row for row in own if row["grade"] == "fine"]
    useful, useless = sum(map(is_useful, refused)), sum(not is_useful(row) for row in fine)
    ratios["fine and not useful"] = _share(useless, len(fine))
    ratios["refused and useful"] = _share(useful, len(refused))
    notes.append(
        f"Of {len(fine)} runs called fine {useless} were not useful. Of {len(refused)} refused ones"
        f" {useful} would have been useful: {_named([r for r in refused if is_useful(r)])}."
    )
    for method in dict.fromkeys(row["method"] for row in own):
        notes.append(_counted(method, [row for row in own if row["method"] == method], ratios))
    for name, family in FAMILIES.items():
        of_family = [row for row in own if row["method"] in family.methods]
        if of_family:
            notes += _tried(name, family, of_family, ratios)
    if absent:
        notes.append(f"Not run: {'; '.join(absent)}.")
    return harness.Result(cells=list(rows), ratios=ratios, notes=notes)


def _counted(method: str, rows: Sequence[Row], ratios: dict[str, float | None]) -> str:
    """Return how often a method's verdicts were wrong, and set its ratios."""
    fine, limited, refused = (
        [row for row in rows if row["grade"] == grade] for grade in ("fine", "limited", "hopeless")
    )
    useless = sum(not is_useful(row) for row in fine)
    useful, surviving = sum(map(is_useful, refused)), sum(map(survives, refused))
    ratios[f"{method}: fine and not useful"] = _share(useless, len(fine))
    ratios[f"{method}: refused and useful"] = _share(useful, len(refused))
    ratios[f"{method}: refused and surviving"] = _share(surviving, len(refused))
    return (
        f"{method}, {len(rows)} cells: of {len(fine)} called fine {useless} were not useful; of"
        f" {len(limited)} called limited {sum(map(is_useful, limited))} were; of {len(refused)}"
        f" refused {useful} would have been, and columns of {surviving} would have survived."
    )


def _named(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(f"{row['method']} on {row['table']}" for row in rows)) or "none"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _tried(
    name: str, family: Family, rows: Sequence[Row], ratios: dict[str, float | None]
) -> list[str]:
    """Return what other tables say of a family's limits, and set its ratios."""
    notes = [f"{name.capitalize()} ({', '.join(family.methods)}) are judged by {family.words}."]
    safe = "no useless run is called fine"
    fewest = "the fewest runs are refused wrongly or let through wrongly"
    for grade, figure, good, kind, choose, words in (
        ("fine", family.fine, is_useful, "useful", safe_limit, safe),
        ("hopeless", family.refused, survives, "surviving", best_limit, fewest),
    ):
        found = left_out(rows, figure, good, family.sign, choose)
        if found is None:
            continue
        limits = ", ".join(f"{limit:.3g} without {one}" for one, limit in found.limits.items())
        every = choose(rows, figure, good, family.sign)
        notes.append(
            f"{name}, limit of {grade} ({figure}) so that {words}: {every:.3g} by all tables;"
            f" {limits}. On the table left out {found.passed_wrongly} of {found.passed} that passed"
            f" were not {kind}, and {found.missed} of {found.good} {kind} ones did not pass."
        )
        of_others = f"limit of {grade} from other tables"
        ratios[f"{name}: passed wrongly, {of_others}"] = _share(found.passed_wrongly, found.passed)
        ratios[f"{name}: {kind} and not passed, {of_others}"] = _share(found.missed, found.good)
    return notes
