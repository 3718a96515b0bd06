"""A million rows of twelve columns through `privsyn` and `pgm` at epsilon 1: seconds and memory.

The whole way goes from the configuration to the certificate, as in `benchmarks.marginals`.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.marginals import (
    COUNTING,
    DRAWING,
    ESTIMATION,
    MOST_MEGABYTES,
    MOST_SECONDS,
    OTHERS,
    READING,
    Size,
    Watch,
    configuration,
    whole_way,
)
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.methods.privsyn import model as privsyn_model
from distributed_privrl.methods.privsyn import program as privsyn_program

EPSILON = 1.0
CLEANING, CONSISTENCY, ADJUSTING = "cleaning", "consistency", "adjusting rows (GUM)"
FULL = Size(rows=1_000_000, units=10_000, draws=100_000, turns=1)
QUICK = Size(rows=6_000, units=200, draws=2_000, turns=1)
METHODS = ("privsyn", "pgm")


def values_of(method: str, size: Size, bounds: Path) -> dict[str, Any]:
    """Return the configuration of a method's run: what is public of the table, else defaults."""
    values = configuration(size, bounds)
    values |= {"method": method, "training": {}}
    values["privacy"] = values["privacy"] | {"epsilon": EPSILON}
    values["model"] = {"rows_per_unit": size.rows // size.units}
    return values


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Time the product's phases while the context is open."""
    phases = [
        (CountWorker, "__init__", READING),
        (CountWorker, "columns", COUNTING),
        (CountWorker, "tables", COUNTING),
        (belief.Belief, "take", CLEANING),
        (belief, "estimated", ESTIMATION),
        (TableModel, "transitions", DRAWING),
        (privsyn_program, "consistent", CONSISTENCY),
        (privsyn_model, "adjusted", ADJUSTING),
        (privsyn_model.Pool, "transitions", DRAWING),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, phase in phases:
            timed = watch.timed(getattr(owner, name), phase, lambda *_: None)
            stack.enter_context(mock.patch.object(owner, name, timed))
        yield


def run(quick: bool) -> Result:
    """Measure the whole way of both methods."""
    size, cells, ratios = (QUICK if quick else FULL), list[dict[str, Any]](), dict[str, float]()
    for method in METHODS:
        watch = Watch(seconds={})
        with tempfile.TemporaryDirectory() as name:
            cpu, wall, peak = whole_way(
                size,
                Path(name),
                watching(watch),
                lambda size, bounds, method=method: values_of(method, size, bounds),
            )
        phases = watch.seconds | {OTHERS: cpu - sum(watch.seconds.values())}
        cells.append(
            {"method": method, "part": "whole way", "CPU s": cpu, "wall s": wall}
            | {"peak MB": peak}
        )
        cells += [
            {"method": method, "part": f"of it: {part}", "CPU s": seconds}
            | {"wall s": None, "peak MB": None}
            for part, seconds in phases.items()
        ]
        ratios[f"{method}_vs_allowed"] = cpu / MOST_SECONDS
        ratios[f"{method}_memory_vs_allowed"] = peak / MOST_MEGABYTES
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"{size.rows:,} rows of 12 columns (two codings of four numbers are counted) of"
            f" {size.units:,} people, as many released; epsilon {EPSILON:g}, seed {SEED}.",
            f"Allowed: {MOST_SECONDS:g} CPU seconds and {MOST_MEGABYTES:,.0f} MB. Imports and"
            " reports are left out.",
        ),
        facts={"rows": size.rows, "epsilon": EPSILON},
    )


if __name__ == "__main__":
    harness.main("one_shot_marginals", run)
