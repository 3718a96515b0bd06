"""More rows of a finished run: others of the same model, for nothing, under the same stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, VerificationError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.sampling import Sample, finished_config, sample_run
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.verification import verify_certificate
from tests.marginals.programs import chained
from tests.worlds.intake import DATASET, RELEASED, Intake
from tests.worlds.shelf import Shelf, loan_store
from tests.worlds.walks import Strolls, walk_store
from tests.worlds.world import World


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    monkeypatch.chdir(tmp_path)


def sampled(world: World, result: RunResult, size: int, dataset: str, **options: Any) -> Sample:
    folder = result.directory.path
    config = finished_config(folder, size, dataset)
    options = {"ledger_url": world.url} | options
    return sample_run(folder, config, LocalExecutor(), store=world.store, **options)


def marginals(folder: Path) -> tuple[World, RunResult]:
    """A run that counted units and found bounds with noise before its stage; real noise."""
    place = Intake(folder)
    asked = {"epsilon": 20.0, "search": str(place.bounds), "parts": ["observation"]}
    config = place.config(data__units={"epsilon": 1.0}, data__bounds=asked, privacy__epsilon=26.0)
    return place, place.afford(config).start(config)


def rows_of_a_network(folder: Path) -> tuple[World, RunResult]:
    (folder / "bounds.yaml").write_text("")
    place = Shelf(folder, loan_store(folder / "made"))
    return place, place.budget().run(key=None)


def trajectories_of_a_network(folder: Path) -> tuple[World, RunResult]:
    place = Strolls(folder, walk_store(folder / "made", public=20))
    return place, place.budget().run(key=None)


def rows(world: World, dataset: str) -> np.ndarray:
    return world.store.read_transitions(dataset, unit="transition").observations


@pytest.mark.parametrize("made", [marginals, rows_of_a_network, trajectories_of_a_network])
def test_a_sample_is_other_rows_of_the_same_model_and_costs_nothing(
    tmp_path: Path, made: Callable[[Path], tuple[World, RunResult]]
) -> None:
    world, result = made(tmp_path)
    assert result.certificate.status == "valid"
    before = world.ledger.entries(), world.ledger.accounts()
    released = rows(world, str(result.released))
    size = finished_config(result.directory.path, 30, "more/first-v0").output.size
    first = sampled(world, result, size, "more/first-v0")
    spent = [(one.id, one.epsilon, one.event, one.status) for one in world.ledger.entries()]
    assert spent == [(one.id, one.epsilon, one.event, one.status) for one in before[0]]
    assert world.ledger.accounts() == before[1]
    for name in ("stages", "ledger_entries", "epsilon", "delta", "status", "noise_source"):
        assert getattr(first.certificate, name) == getattr(result.certificate, name)
    checked = verify_certificate(first.path, ledger=world.ledger, outputs_root=world.store.root)
    assert checked.ledger_checked
    assert not checked.outputs_missing
    assert world.store.info(first.dataset).certificate == first.certificate.to_dict()
    drawn = rows(world, first.dataset)
    shared = min(len(drawn), len(released))
    assert shared
    assert not np.array_equal(drawn[:shared], released[:shared])
    assert [path.name for path in first.path.parent.iterdir()] == ["certificate.json"]
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )  # the run's own is as it was


def test_the_same_id_draws_the_same_rows_and_another_one_others(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    result = place.run(key=None)
    sampled(place, result, 40, "more/a-v0")
    first = rows(place, "more/a-v0")
    sampled(place, result, 40, "more/b-v0")
    assert not np.array_equal(rows(place, "more/b-v0"), first)
    place.store.remove("more/a-v0")
    assert len(first) == 40
    released = rows(place, RELEASED)
    assert abs(first[:, 0].mean() - released[:, 0].mean()) < 4 * released[:, 0].std() / np.sqrt(40)


def test_what_cannot_be_sampled_is_refused(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    with pytest.raises(ConfigError, match="holds no finished run"):
        finished_config(tmp_path / "run", 5, None)
    result = place.run(key=None)
    folder = result.directory.path
    assert finished_config(folder, 5, None).output.datasets == (RELEASED.replace("-v", "-more-v"),)
    for taken in (DATASET, RELEASED):
        with pytest.raises(ConfigError, match="is a dataset of the run"):
            finished_config(folder, 5, taken)
    sampled(place, result, 5, "more/a-v0")
    with pytest.raises(ConfigError, match="exists: choose another --dataset"):
        sampled(place, result, 5, "more/a-v0")
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    with pytest.raises(VerificationError, match="the ledger has no entry"):
        sampled(place, result, 5, "more/c-v0", ledger_url=other)
    assert "more/c-v0" not in place.store.ids()
