"""Gates on whole runs of PrivORL: transitions, and trajectories of many fragments."""

import shutil
from pathlib import Path

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.privacy.ledger import Ledger
from tests.gates.whole_runs import WholeRun, gate_whole_run
from tests.methods import tiny, walks


def gate_certified_transitions(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-n over ``store`` does what it certifies."""
    _gate(folder, store, tiny.config(), all_rows=False)


def gate_certified_autoregressive(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-AR over ``store`` does what it certifies."""
    _gate(folder, store, tiny.ar_config(), all_rows=False)


def gate_certified_trajectories(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-j over ``store`` does what it certifies."""
    _gate(folder, store, walks.config(), all_rows=True)


def gate_certified_steps(folder: Path, store: DatasetStore) -> None:
    """Runs of PrivORL-AR-j, of all fragments and of drawn ones, do what they certify."""
    for name in ("all", "drawn"):
        (folder / name).mkdir()
    _gate(folder / "all", store, walks.ar_config(), all_rows=True)
    drawn = {"all_fragments": False, "noise_multiplicity": 2}
    training = walks.ar_config().training.model_dump(mode="json") | drawn
    _gate(folder / "drawn", store, walks.ar_config(training=training), all_rows=False)


def _gate(folder: Path, store: DatasetStore, config: PrivorlConfig, *, all_rows: bool) -> None:
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    own = DatasetStore(shutil.copytree(store.root, folder / "datasets"))
    set_budget(config, own, url)
    assert isinstance(config.data.units, int)
    gate_whole_run(
        WholeRun(
            config=config,
            ledger=Ledger(url),
            start=lambda: program.run(
                config, LocalExecutor(), out=folder / "run", ledger_url=url, store=own
            ),
            stages=["fine-tune"],
            units=config.data.units,
            rows=(all_rows, config.training.noise_multiplicity),
            outputs=own.root,
        )
    )
