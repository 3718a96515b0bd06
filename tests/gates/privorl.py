"""Gates on whole runs of PrivORL: transitions, and trajectories of many fragments."""

from collections.abc import Sequence
from pathlib import Path

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlConfig
from tests.gates.whole_runs import WholeRun, gate_whole_run
from tests.worlds import mazes, walks
from tests.worlds.world import World


def gate_certified_transitions(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-n over ``store`` does what it certifies."""
    _gate(folder, store, mazes.config(), all_rows=False)


def gate_certified_autoregressive(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-AR over ``store`` does what it certifies."""
    _gate(folder, store, mazes.ar_config(), all_rows=False)


def gate_certified_trajectories(folder: Path, store: DatasetStore) -> None:
    """A run of PrivORL-j over ``store`` does what it certifies."""
    _gate(folder, store, walks.config(), all_rows=True)


def gate_certified_steps(folder: Path, store: DatasetStore) -> None:
    """Runs of PrivORL-AR-j do what they certify.

    They are of all fragments, of drawn ones, and with a support and parts that public data teach.
    """
    for name in ("all", "drawn", "support"):
        (folder / name).mkdir()
    _gate(folder / "all", store, walks.ar_config(), all_rows=True)
    drawn = {"all_fragments": False, "noise_multiplicity": 2}
    training = walks.ar_config().training.model_dump(mode="json") | drawn
    _gate(folder / "drawn", store, walks.ar_config(training=training), all_rows=False)
    support = {"sampling": {"support": {"epsilon": 2.0, "columns": [0], "cells": 6}}}
    training = walks.ar_config().training.model_dump(mode="json") | support
    model = walks.ar_config().model.model_dump() | {"public_parts": ["next_observation"]}
    config = walks.ar_config(training=training, model=model)
    _gate(folder / "support", store, config, all_rows=True, first=["support"])


def gate_certified_tokens(folder: Path, store: DatasetStore) -> None:
    """A run of DP-Transformer over ``store`` does what it certifies."""
    _gate(folder, store, walks.token_config(), all_rows=True)


def _gate(
    folder: Path,
    store: DatasetStore,
    config: PrivorlConfig,
    *,
    all_rows: bool,
    first: Sequence[str] = (),
) -> None:
    world = World(folder, store).afford(config)
    assert isinstance(config.data.units, int)
    gate_whole_run(
        WholeRun(
            config=config,
            ledger=world.ledger,
            start=lambda: world.start(config),
            stages=[*first, "fine-tune"],
            units=config.data.units,
            rows=(all_rows, config.training.noise_multiplicity),
            outputs=world.store.root,
        )
    )
