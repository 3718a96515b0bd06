import functools
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.protocol import registration
from benchmarks.protocol.registration import (
    REGISTERED,
    begin_once,
    judge_once,
    open_set,
    openings,
    register,
    settings_hash,
)
from distributed_privrl.core.errors import UnsafeError

Log = Callable[[str, Mapping[str, Any], Path], None]
SETTINGS = {"grid": 0.2, "mazes": ["a", "b"]}


def test_a_hash_knows_every_value_and_no_order_of_keys() -> None:
    assert settings_hash(SETTINGS) == settings_hash({"mazes": ["a", "b"], "grid": 0.2})
    for change in ({"grid": 0.25}, {"mazes": ["b", "a"]}, {"more": 1}):
        assert settings_hash({**SETTINGS, **change}) != settings_hash(SETTINGS)
    with pytest.raises(ValueError, match="JSON compliant"):
        settings_hash({"grid": float("nan")})


def test_a_set_is_opened_under_one_hash_and_judged_once(tmp_path: Path) -> None:
    digest = register(SETTINGS, tmp_path)
    open_set("maze-7", SETTINGS, tmp_path)
    open_set("maze-7", SETTINGS, tmp_path)  # goes on where it stopped
    judge_once("maze-7, real", SETTINGS, tmp_path)
    judge_once("maze-7, private", SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="maze-7, private was judged before"):
        judge_once("maze-7, private", SETTINGS, tmp_path)
    assert openings(tmp_path) == [
        {"opened": "maze-7", "sha256": digest},
        {"judged": "maze-7, real", "sha256": digest},
        {"judged": "maze-7, private", "sha256": digest},
    ]


@pytest.mark.parametrize("log", [open_set, judge_once])
def test_nothing_opens_unregistered_or_under_other_settings(log: Log, tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match="is missing: register and commit"):
        log("maze-7", SETTINGS, tmp_path)
    register(SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="settings may not change"):
        log("maze-7", {**SETTINGS, "grid": 0.1}, tmp_path)
    assert openings(tmp_path) == []


def test_a_registered_file_that_was_edited_opens_nothing(tmp_path: Path) -> None:
    register(SETTINGS, tmp_path)
    path = tmp_path / REGISTERED
    content = json.loads(path.read_text())
    content["settings"]["grid"] = 0.1
    path.write_text(json.dumps(content))
    with pytest.raises(UnsafeError, match="hash is not that of its settings"):
        open_set("maze-7", {**SETTINGS, "grid": 0.1}, tmp_path)


def test_settings_change_before_the_first_opening_only(tmp_path: Path) -> None:
    register({"grid": 1}, tmp_path)
    register(SETTINGS, tmp_path)
    open_set("maze-7", SETTINGS, tmp_path)
    register(SETTINGS, tmp_path)
    with pytest.raises(UnsafeError, match="register new ones in a new folder"):
        register({"grid": 2}, tmp_path)


@pytest.mark.parametrize("log", [open_set, judge_once])
def test_an_opening_outlives_the_file_of_its_settings(log: Log, tmp_path: Path) -> None:
    register(SETTINGS, tmp_path)
    open_set("maze-7", SETTINGS, tmp_path)
    other = {**SETTINGS, "grid": 0.1}
    (tmp_path / REGISTERED).unlink()
    with pytest.raises(UnsafeError, match="opened under other settings"):
        register(other, tmp_path)
    content = {"sha256": settings_hash(other), "settings": other}
    (tmp_path / REGISTERED).write_text(json.dumps(content))
    with pytest.raises(UnsafeError, match="opened under other settings"):
        log("maze-7", other, tmp_path)


def test_a_generator_is_begun_in_one_place(tmp_path: Path) -> None:
    register(SETTINGS, tmp_path)
    begin_once("maze-7, private", SETTINGS, tmp_path, goes_on=False)
    begin_once("maze-7, private", SETTINGS, tmp_path, goes_on=True)
    with pytest.raises(UnsafeError, match="its run is not here"):
        begin_once("maze-7, private", SETTINGS, tmp_path, goes_on=False)
    assert len(openings(tmp_path)) == 1


@pytest.mark.parametrize(
    "once", [judge_once, functools.partial(begin_once, goes_on=False)], ids=["judge", "begin"]
)
def test_of_commands_at_the_same_time_one_makes_the_figure(
    once: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(SETTINGS, tmp_path)
    read = registration.openings

    def slowly(folder: Path) -> list[dict[str, str]]:
        found = read(folder)
        time.sleep(0.01)
        return found

    monkeypatch.setattr(registration, "openings", slowly)

    def tried(_: int) -> bool:
        try:
            once("cell", SETTINGS, tmp_path)
        except UnsafeError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(tried, range(4))) == 1
