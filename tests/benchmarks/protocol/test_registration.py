import json
from pathlib import Path

import pytest

from benchmarks.protocol.registration import (
    REGISTERED,
    open_once,
    openings,
    register,
    settings_hash,
)
from distributed_privrl.core.errors import UnsafeError

SETTINGS = {"grid": 0.2, "mazes": ["a", "b"]}


def test_a_hash_knows_every_value_and_no_order_of_keys() -> None:
    assert settings_hash(SETTINGS) == settings_hash({"mazes": ["a", "b"], "grid": 0.2})
    for change in ({"grid": 0.25}, {"mazes": ["b", "a"]}, {"more": 1}):
        assert settings_hash({**SETTINGS, **change}) != settings_hash(SETTINGS)
    with pytest.raises(ValueError, match="JSON compliant"):
        settings_hash({"grid": float("nan")})


def test_a_set_opens_once_and_the_log_says_so(tmp_path: Path) -> None:
    digest = register(SETTINGS, tmp_path)
    open_once("maze-7", SETTINGS, tmp_path)
    open_once("maze-8", SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="maze-7 was opened before"):
        open_once("maze-7", SETTINGS, tmp_path)
    assert openings(tmp_path) == [
        {"dataset": "maze-7", "sha256": digest},
        {"dataset": "maze-8", "sha256": digest},
    ]


def test_nothing_opens_unregistered_or_under_other_settings(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match="is missing: register and commit"):
        open_once("maze-7", SETTINGS, tmp_path)
    register(SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="settings may not change"):
        open_once("maze-7", {**SETTINGS, "grid": 0.1}, tmp_path)
    assert openings(tmp_path) == []


def test_a_registered_file_that_was_edited_opens_nothing(tmp_path: Path) -> None:
    register(SETTINGS, tmp_path)
    path = tmp_path / REGISTERED
    content = json.loads(path.read_text())
    content["settings"]["grid"] = 0.1
    path.write_text(json.dumps(content))
    with pytest.raises(UnsafeError, match="hash is not that of its settings"):
        open_once("maze-7", {**SETTINGS, "grid": 0.1}, tmp_path)


def test_settings_change_before_the_first_opening_only(tmp_path: Path) -> None:
    register({"grid": 1}, tmp_path)
    register(SETTINGS, tmp_path)
    open_once("maze-7", SETTINGS, tmp_path)
    register(SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="register new ones in a new folder"):
        register({"grid": 2}, tmp_path)
