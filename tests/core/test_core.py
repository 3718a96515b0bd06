"""Configuration, streams, files, ids: the parts that everything stands on."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core import errors
from distributed_privrl.core.checks import check_dataset_id, check_delta, check_positive
from distributed_privrl.core.config import DataConfig, RunConfig, validate, with_overrides
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import atomic_path, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.core.threads import THREAD_ENVIRONMENT
from distributed_privrl.core.yaml_files import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("5e5", 5e5), ("1.5", 1.5), ("3", 3), (".5", 0.5), ("1e", "1e"), ("v0", "v0")],
)
def test_numbers_are_read_as_people_write_them(text: str, value: object) -> None:
    parsed = parse_yaml(text, source="test")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: [1", "a: {b: 1, b: 2}"])
def test_broken_yaml_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="test is not valid YAML") as caught:
        parse_yaml(text, source="test")
    assert "\n" not in str(caught.value)


def test_yaml_runs_no_code() -> None:
    with pytest.raises(ConfigError):
        parse_yaml("!!python/object/apply:os.system ['true']", source="test")


def test_blanks_are_named_by_their_lines_and_null_is_none() -> None:
    assert parse_yaml("a: null\nb: ~\nc: ''\nd: [x, y]", source="test")["a"] is None
    text = (
        "a:\n  b:  # a comment\n  c: 1\nlow:\n  - 1\n  -  # age\nbeside: &one {d: }\nlike: *one\n"
    )
    with pytest.raises(ConfigError) as refused:
        parse_yaml(text, source="draft.yaml")
    assert str(refused.value) == (
        "draft.yaml has blanks, fill in a.b (line 2), low[1] (line 6), beside.d (line 7); null says"
        " that nothing is meant to stand there"
    )
    many = "\n".join(f"key{i}:" for i in range(20))
    with pytest.raises(ConfigError, match=r"key7 \(line 8\) and 12 more; null"):
        parse_yaml(many, source="draft.yaml")
    assert parse_yaml("", source="test") is None


def test_a_missing_or_strange_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file at"):
        read_yaml(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="must hold keys and values, got list"):
        read_yaml(tmp_path / "list.yaml")


def test_overrides_reach_inside_and_leave_the_original_alone() -> None:
    values = {"a": {"b": 1, "c": 2}}
    assert with_overrides(values, ["a.b=5", "d.e=[1, x]"]) == {
        "a": {"b": 5, "c": 2},
        "d": {"e": [1, "x"]},
    }
    assert values == {"a": {"b": 1, "c": 2}}
    for bad in ("a.b", "=1", "a.b.c=1"):
        with pytest.raises(ConfigError, match="override"):
            with_overrides(values, [bad])


def test_unknown_keys_name_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'unti' \(known: sensitive, public"):
        validate(DataConfig, {"sensitive": "a-v0", "unit": "x", "unti": 1}, source="c.yaml")
    with pytest.raises(ConfigError, match="'unit' is missing"):
        validate(DataConfig, {"sensitive": "a-v0"}, source="c.yaml")


def test_configurations_are_frozen() -> None:
    data = DataConfig(sensitive="a-v0", unit="trajectory")
    with pytest.raises(ValueError, match="frozen"):
        data.unit = "transition"
    assert RunConfig.model_config["extra"] == "forbid"


def test_what_is_to_be_found_with_noise_is_read_and_written_alike() -> None:
    count, bounds = {"epsilon": 0.25}, {"epsilon": 0.5, "search": "wide.yaml"}
    for units, found in ((9, None), (count, None), (count, bounds)):
        values = {"sensitive": "a-v0", "unit": "transition", "units": units, "bounds": found}
        data = validate(DataConfig, values, source="test")
        assert validate(DataConfig, data.model_dump(mode="json"), source="test") == data


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"search": None},
        {"quantiles": [0.9, 0.1]},
        {"quantiles": [0, 0.5]},
        {"quantiles": [0.5, 1]},
        {"quantiles": [0.12345, 0.9]},
        {"quantiles": [0.5]},
        {"quantiles": [float("nan"), 0.9]},
        {"parts": []},
        {"parts": ["patient"]},
        {"surprise": 1},
    ],
)
def test_noisy_bounds_that_make_no_sense_are_one_line(wrong: dict[str, object]) -> None:
    bounds = {"epsilon": 0.5, "search": "wide.yaml", **wrong}
    values = {"sensitive": "a-v0", "unit": "transition", "bounds": bounds}
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        validate(DataConfig, values, source="test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("good", ["a-v0", "clinic/stays-v12", "D4RL/door/human-v2", "a_b/c-d-v1"])
def test_dataset_ids(good: str) -> None:
    assert check_dataset_id("dataset", good) == good


@pytest.mark.parametrize(
    "bad", ["a", "a-v", "../a-v0", "/a-v0", "a//b-v0", "a-v0\n", "a b-v0", "-a-v0", "ä-v0", ""]
)
def test_malformed_dataset_ids(bad: str) -> None:
    with pytest.raises(ConfigError, match="must look like"):
        check_dataset_id("dataset", bad)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_positive_numbers(value: float) -> None:
    with pytest.raises(ConfigError, match="epsilon must be a finite number > 0"):
        check_positive("epsilon", value)


def test_delta_lies_below_one() -> None:
    assert check_delta("delta", 0.0) == 0
    with pytest.raises(ConfigError):
        check_delta("delta", 1.0)


def test_streams_depend_on_seed_and_name_alone() -> None:
    first = Streams(1).numpy("a").random(4)
    assert np.array_equal(first, Streams(1).numpy("a").random(4))
    for other in (Streams(2).numpy("a"), Streams(1).numpy("b"), Streams(1).child("a").numpy("a")):
        assert not np.array_equal(first, other.random(4))
    assert 0 <= Streams(1).integer("a") < 2**63


def test_atomic_writes_leave_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, "one", mode=0o600)
    assert path.read_text() == "one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    class CrashError(Exception):
        pass

    def crash() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise CrashError

    with pytest.raises(CrashError):
        crash()
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="free some space and run again with --resume"),
        atomic_path(tmp_path / "file"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_exit_codes_are_the_contract() -> None:
    codes = {
        errors.ConfigError: 2,
        errors.BudgetError: 3,
        errors.UnsafeError: 4,
        errors.MissingExtraError: 5,
        errors.VerificationError: 6,
        errors.StorageError: 7,
    }
    assert {cls: cls.exit_code for cls in codes} == codes
    assert errors.INTERRUPTED_EXIT_CODE == 130
    assert "distributed_privrl[envs]" in str(errors.MissingExtraError("mujoco", "envs"))


def test_one_thread_a_process() -> None:
    for name in THREAD_ENVIRONMENT:
        assert os.environ[name]
    import torch

    assert torch.get_num_threads() == 1


def test_local_workers_are_closed() -> None:
    closed: list[int] = []

    class Worker:
        def __init__(self, shard: int) -> None:
            self.shard = shard

        def close(self) -> None:
            closed.append(self.shard)

    executor = LocalExecutor()
    executor.start(Worker, [1, 2])
    executor.close()
    assert closed == [1, 2]
