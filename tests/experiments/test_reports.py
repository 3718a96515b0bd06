"""The reports of a run: real rows, whatever they are, change the private one alone."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.reports import rebuild_report, write_reports
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget
from tests.worlds.certified import certify
from tests.worlds.ledgers import url_of
from tests.worlds.walks import PUBLIC, SENSITIVE, SPACES, config, walks

RELEASED = config().output.dataset


def finished(folder: Path) -> tuple[DatasetStore, RunDirectory, Certificate]:
    """Return a run's release and folder."""
    store, directory = DatasetStore(folder / "datasets"), RunDirectory(folder / "run")
    for dataset, seed in ((SENSITIVE, 1), (PUBLIC, 2), (RELEASED, 3)):
        store.write_trajectories(dataset, walks(20, seed=seed), **SPACES)
    certificate = certify(store, RELEASED, method="privorl_j")
    RunDirectory.create(directory.path, config(), resume=False, noise_source="float64_lattice")
    directory.certificate.write_text(certificate.to_json())
    return store, directory, certificate


def test_no_real_row_ends_a_run_or_shows_outside_private(tmp_path: Path) -> None:
    store, directory, certificate = finished(tmp_path)
    ledger = Ledger(url_of(tmp_path))
    real = store.read_trajectories(SENSITIVE)
    seen = []
    for first in (0.0, np.nan, np.inf):
        rewards = real.rewards.copy()
        rewards[0] = first
        shutil.rmtree(store.root / SENSITIVE)
        store.write_trajectories(SENSITIVE, replace(real, rewards=rewards), **SPACES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_reports(config(), store, directory, certificate, trials=[], ledger=ledger)
        paths = [directory.path / name for name in ("report.html", "report.json")]
        paths.append(store.folder(RELEASED) / "README.md")
        seen.append([path.read_bytes() for path in paths])
        report = json.loads((directory.private / "report.json").read_text())
        titles = [section["title"] for section in report["sections"]]
        assert (titles[0], titles[-1]) == ("What the release is worth", "Whole trajectories")
        assert "failed: " not in json.dumps(report), "what is no number is left out"
    assert seen[0] == seen[1] == seen[2]
    others = walks(150, 7)
    assert others.lengths.mean() != real.lengths.mean()
    shutil.rmtree(store.root / SENSITIVE)
    store.write_trajectories(SENSITIVE, others, **SPACES)
    write_reports(config(), store, directory, certificate, trials=[], ledger=ledger)
    assert [path.read_bytes() for path in paths] == seen[0]


def test_a_report_shows_no_public_dataset_that_got_a_budget(tmp_path: Path) -> None:
    store, directory, _ = finished(tmp_path)
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    Ledger(url).set_budget(
        dataset=PUBLIC,
        fingerprint=inspect(store, PUBLIC).fingerprint,
        budget=PrivacyBudget(epsilon=1.0, delta=1e-6, unit="trajectory"),
    )
    with pytest.raises(UnsafeError, match=f"{PUBLIC} cannot be public"):
        rebuild_report(directory.path, store=store, ledger_url=url)
    assert not directory.report.exists()
