"""Models of the product's own runs of `marginals_j`, of rows that a benchmark generates."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import method_named, parse_config
from distributed_privrl.marginals.drawing import TableModel
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
