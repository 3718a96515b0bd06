"""Models of the product's own runs of `marginals_j`, of rows that a benchmark generates."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.harness import SEED
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import method_named, parse_config
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.stages.context import RunContext

DATASET = "generated/people-v0"


def model_of(
    write: Callable[[DatasetStore], Any],
    *,
    bounds: str,
    data: Mapping[str, Any],
    epsilon: float,
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    seed: int,
) -> TableModel:
    """Return the model of a run of the product, whose noise is seeded.

    Args:
        write: puts the rows into a store, as `DATASET`.
        bounds: text of a bounds file.
        data: of the configuration, beside dataset and bounds.
        epsilon: of the run; delta is 1e-6.
        model: of the configuration.
        training: of the configuration.
        seed: of noise, choices and drawn rows.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bounds.yaml").write_text(bounds)
        store, url = DatasetStore(folder / "datasets"), f"sqlite:///{folder / 'ledger.sqlite'}"
        write(store)
        values = {
            "method": "marginals_j",
            "seed": seed,
            "data": {"sensitive": DATASET, "bounds": str(folder / "bounds.yaml"), **data},
            "privacy": {"epsilon": epsilon, "delta": 1e-6},
            "model": model,
            "training": training,
            "output": {"dataset": "generated/made-v0", "size": 10},
            "runtime": {"workers": 1, "executor": "local"},
        }
        config = parse_config(values, source="benchmark")
        set_budget(config, store, url)
        about: dict[str, Any] = {"ledger_url": url, "store": store, "insecure_key": seed}
        executor = LocalExecutor()
        done = program.run(config, executor, out=folder / "run", anyway=True, **about)
        context = RunContext(
            run_id=done.directory.run_id,
            folder=done.directory.working(private=True),
            executor=executor,
            store=store,
            ledger=Ledger(url),
            fingerprint="",
            progress=silent,
        )
        attack: Any = method_named("marginals_j").open_attack(config, context)
        found: TableModel = attack.model
        return found


def drawn_panel(
    people: pd.DataFrame,
    schema: Mapping[str, Any],
    *,
    bounds: str,
    rows: int,
    epsilon: float,
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    draw: int,
    count: int,
) -> Trajectories:
    """Return trajectories of a run of the product over a table of people, a column named person.

    Args:
        people: the rows; everybody has as many.
        schema: of the table.
        bounds: text of a bounds file.
        rows: of each person.
        epsilon: of the run.
        model: of the configuration, beside what follows from the rows.
        training: of the configuration, likewise.
        draw: number of the draw of the noise.
        count: of the trajectories.
    """
    found = model_of(
        lambda store: from_table(people, schema, dataset=DATASET, store=store),
        bounds=bounds,
        data={"unit": "person", "units": people["person"].nunique(), "max_length": rows},
        epsilon=epsilon,
        model={
            **{"rows_per_unit": rows, "trajectories_per_unit": 1},
            **{"draws": 50_000, "model_cells": 100_000, **model},
        },
        training={**training, "sampling": {"max_length": rows}},
        seed=SEED + draw,
    )
    return Rollout(found, rows).draw(count, Streams(SEED + draw).numpy("drawn"))


def columns_kept(
    made: pd.DataFrame, real: pd.DataFrame, names: Sequence[str], *, high: float
) -> float:
    """Return the mean of 1 less the Kolmogorov-Smirnov statistic of columns of whole numbers.

    Args:
        made: rows that were drawn; gaps are left out.
        real: rows they are held against.
        names: of the columns.
        high: the largest number; 0 is the least.
    """
    return float(np.mean([_alike(made[one].dropna(), real[one].dropna(), high) for one in names]))


def _alike(one: "pd.Series[float]", other: "pd.Series[float]", high: float) -> float:
    grid = np.arange(high + 1)
    shares: list[NDArray[np.float64]] = [
        np.searchsorted(np.sort(each), grid, side="right") / len(each) for each in (one, other)
    ]
    return 1 - float(np.abs(shares[0] - shares[1]).max())
