import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, MultiDiscrete

from distributed_privrl.agents.training import packed_rows
from distributed_privrl.core.errors import (
    ConfigError,
    StorageError,
    UnsafeError,
    VerificationError,
)
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.clearance import Release, proven
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.runtime.rllib import bridge as module
from distributed_privrl.runtime.rllib.bridge import COLUMNS, Bridge, export_for_rllib
from tests.runtime.rllib.rows import (
    BOX_ACTIONS,
    DISCRETE_ACTIONS,
    OBSERVATIONS,
    bridge,
    transitions,
)
from tests.worlds.certified import certify


def _stored(store: DatasetStore, metadata: dict[str, object]) -> None:
    store.write_transitions(
        "a/b-v0",
        transitions(BOX_ACTIONS),
        layout="transitions",
        observation_space=OBSERVATIONS,
        action_space=BOX_ACTIONS,
        metadata=metadata,
    )


def _read(found: Bridge) -> Transitions:
    """Return the rows as a reader without our code sees them."""
    columns: dict[str, list[object]] = {field: [] for field in COLUMNS.values()}
    for path in found.files():
        table = pq.read_table(path)
        assert table.column_names == list(COLUMNS)
        for name, field in COLUMNS.items():
            columns[field] += table.column(name).to_pylist()
    return Transitions(**{field: np.array(values) for field, values in columns.items()})


@pytest.mark.parametrize("space", [BOX_ACTIONS, DISCRETE_ACTIONS])
def test_every_row_is_there_once_in_another_order(
    space: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_ROWS", 128)
    found = bridge(tmp_path / "out", space)
    assert len(found.files()) == 3
    original, read = transitions(space), _read(found)
    order = read.unit_ids.argsort()
    assert (np.sort(read.unit_ids) == np.arange(300)).all()
    assert not (read.unit_ids == np.arange(300)).all()
    for field in fields(Transitions):
        np.testing.assert_array_equal(
            getattr(read, field.name)[order], getattr(original, field.name)
        )
    again = _read(bridge(tmp_path / "again", space))
    np.testing.assert_array_equal(again.unit_ids, read.unit_ids)


def test_the_description_says_how_to_encode(tmp_path: Path) -> None:
    made = bridge(tmp_path / "out", BOX_ACTIONS)
    found = Bridge.load(tmp_path / "out")
    values = json.loads((tmp_path / "out" / "bridge.json").read_text())
    assert (found.rows, found.source, found.certificate_digest, found.seed) == (
        *(300, "a/b-v0", "abc", 3),
    )
    assert values["action_bounds"] == {"low": [-1, 0], "high": [1, 10]}
    assert found.observation_space == OBSERVATIONS
    assert found.action_space == BOX_ACTIONS
    np.testing.assert_array_equal(found.normalisation.mean, made.normalisation.mean)
    rows = packed_rows(
        _read(found),
        observation_space=found.observation_space,
        action_space=found.action_space,
        normalisation=found.normalisation,
    )
    np.testing.assert_allclose(rows[:, :3].mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(rows[:, :3].std(axis=0), 1, atol=0.02)
    assert np.abs(rows[:, 3:5]).max() <= 1
    (tmp_path / "out" / "bridge.json").write_text("{")
    with pytest.raises(StorageError, match="export the dataset again"):
        Bridge.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("metadata", "allowed"),
    [
        ({"declared_public": True}, True),
        ({}, False),
        ({"declared_public": "true"}, False),
        ({"privacy_certificate": {"status": "non_private"}}, False),
        ({"privacy_certificate": {"status": "invalid"}}, False),
        ({"privacy_certificate": "valid"}, False),
    ],
)
def test_only_released_and_public_rows_pass(
    metadata: dict[str, object], allowed: bool, tmp_path: Path
) -> None:
    store = DatasetStore(tmp_path / "datasets")
    _stored(store, metadata)
    out = tmp_path / "out"
    if allowed:
        found = export_for_rllib(store, "a/b-v0", out)
        assert found.certificate_digest is None
        with pytest.raises(ConfigError, match="exists already"):
            export_for_rllib(store, "a/b-v0", out)
        return
    with pytest.raises(UnsafeError, match=r"a/b-v0 .*RLlib may not read it: use a plain trainer"):
        export_for_rllib(store, "a/b-v0", out)
    assert not out.exists()


def test_released_rows_are_those_that_the_certificate_names(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "datasets")
    _stored(store, {})
    digest = certify(store, "a/b-v0").digest
    assert export_for_rllib(store, "a/b-v0", tmp_path / "good").certificate_digest == digest
    store.write_transitions(
        "a/other-v0",
        transitions(BOX_ACTIONS, 200),
        layout="transitions",
        observation_space=OBSERVATIONS,
        action_space=BOX_ACTIONS,
    )
    parquet = "data/transitions.parquet"
    shutil.copy(store.root / "a/other-v0" / parquet, store.root / "a/b-v0" / parquet)
    with pytest.raises(VerificationError, match=r"a/b-v0/data/transitions.parquet is not what"):
        export_for_rllib(store, "a/b-v0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_public_rows_with_a_budget_are_refused(tmp_path: Path) -> None:
    store, url = DatasetStore(tmp_path / "datasets"), f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    _stored(store, {"declared_public": True})
    export_for_rllib(store, "a/b-v0", tmp_path / "before", ledger_url=url)
    Ledger(url).set_budget(
        dataset="a/sensitive-v0",
        fingerprint=inspect(store, "a/b-v0").fingerprint,
        budget=PrivacyBudget(epsilon=1.0, delta=1e-5, unit="transition"),
    )
    with pytest.raises(UnsafeError, match="have a privacy budget as a/sensitive-v0"):
        export_for_rllib(store, "a/b-v0", tmp_path / "out", ledger_url=url)
    assert not (tmp_path / "out").exists()


def test_bare_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match="with the proof"):
        module.write_bridge(
            transitions(BOX_ACTIONS),
            tmp_path / "out",
            observation_space=OBSERVATIONS,
            action_space=BOX_ACTIONS,
            seed=0,
        )
    assert not list(tmp_path.iterdir())


def _changed(folder: Path) -> None:
    path = folder / "transitions-00000.parquet"
    path.write_bytes(path.read_bytes() + b" ")


def _extra(folder: Path) -> None:
    shutil.copy(folder / "transitions-00000.parquet", folder / "transitions-00001.parquet")


def _missing(folder: Path) -> None:
    (folder / "transitions-00000.parquet").unlink()


@pytest.mark.parametrize("harm", [_changed, _extra, _missing])
def test_files_are_those_that_the_description_lists(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    found = bridge(tmp_path / "out", BOX_ACTIONS)
    (listed,) = json.loads((tmp_path / "out" / "bridge.json").read_text())["files"]
    assert listed["rows"] == 300
    assert listed["sha256"] == hashlib.sha256(found.files()[0].read_bytes()).hexdigest()
    assert Bridge.load(tmp_path / "out").parts == found.parts
    harm(tmp_path / "out")
    with pytest.raises(StorageError, match=r"transitions-0000\d.parquet is not what bridge.json"):
        Bridge.load(tmp_path / "out")


def test_the_number_of_rows_is_checked(tmp_path: Path) -> None:
    found = bridge(tmp_path / "out", BOX_ACTIONS)
    (part,) = found.parts
    assert len(found.read(part)) == 300
    with pytest.raises(StorageError, match="has 300 rows"):
        found.read(replace(part, rows=299))


def test_rows_that_no_agent_can_use_are_refused(tmp_path: Path) -> None:
    rows = transitions(BOX_ACTIONS)
    release = Release(dataset="x-v0", certificate=None)
    given = {
        "observation_space": OBSERVATIONS,
        "action_space": BOX_ACTIONS,
        "seed": 0,
    }
    missing = replace(rows, rewards=np.where(np.arange(300) == 7, np.nan, rows.rewards))
    for message, transitions_, changed in (
        ("not finite", missing, {}),
        ("empty", rows.select(slice(0)), {}),
        ("observation space", rows, {"observation_space": MultiDiscrete([2, 2, 2])}),
        ("finite bounds", rows, {"action_space": Box(-np.inf, np.inf, (2,))}),
    ):
        with pytest.raises(ConfigError, match=message):
            module.write_bridge(
                proven(transitions_, release), tmp_path / "out", **{**given, **changed}
            )
    assert not list(tmp_path.iterdir())


def test_the_description_is_strict_json(tmp_path: Path) -> None:
    found = bridge(tmp_path / "out", BOX_ACTIONS)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    values = json.loads((found.folder / "bridge.json").read_text(), parse_constant=refuse)
    assert values["observation_space"]["low"] == [None] * 3
    again = Bridge.load(found.folder)
    assert again.observation_space == OBSERVATIONS
    assert again.action_space == BOX_ACTIONS
