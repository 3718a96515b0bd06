"""Some of what ``make fuzz`` does for minutes, in seconds, and inputs that once were defects."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributed_privrl.core.errors import ConfigError
from tests.fuzz.process import FOUND, Feeder
from tests.fuzz.targets import ACCEPTED, TARGETS, Target, mutated
from tests.worlds.bounded import bounded

INPUTS = 12


@pytest.fixture(params=list(TARGETS))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return TARGETS[request.param](tmp_path)


def test_changed_bytes_end_well_or_in_one_line(target: Target) -> None:
    changed = mutated(target.seeds, np.random.default_rng(0))
    with bounded(megabytes=2048, seconds=60):
        assert {target.outcome(next(changed)) for _ in target.seeds} == {ACCEPTED}
        for _ in range(INPUTS):
            target.outcome(next(changed))


@settings(
    max_examples=INPUTS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode()))
def test_anything_at_all_ends_well_or_in_one_line(target: Target, content: bytes) -> None:
    target.outcome(content)


def test_metadata_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    assert (
        TARGETS["minari metadata"](tmp_path).outcome(b'{"total_steps": "\xff"}') == "StorageError"
    )


@pytest.mark.parametrize("method", [b"{a: b}", b"[marginals]", b"3", b"null", b"''"])
def test_a_method_that_is_no_name_is_refused(method: bytes, tmp_path: Path) -> None:
    target = TARGETS["configuration"](tmp_path)
    changed = [re.sub(rb"(?m)^method: *\w+", b"method: " + method, one) for one in target.seeds]
    assert changed != list(target.seeds)
    assert {target.outcome(content) for content in changed} == {"ConfigError"}


@pytest.mark.parametrize(
    "url", ["file:/data/\0url", "sqlite:////data/\0ledger", "sqlite:///~nobody-is-called-so/ledger"]
)
def test_urls_of_ledgers_that_name_no_file_are_refused(url: str, tmp_path: Path) -> None:
    assert TARGETS["ledger url"](tmp_path).outcome(url.encode()) == "ConfigError"


def failing(content: bytes) -> None:
    if content == b"bad":
        raise RuntimeError("a defect")
    if content == b"long":
        raise ConfigError("x" * 10_000)


def test_a_defect_is_no_outcome_and_is_kept(tmp_path: Path) -> None:
    target = Target(read=failing, seeds=(b"good",))
    assert target.outcome(b"good") == ACCEPTED
    with pytest.raises(RuntimeError):
        target.outcome(b"bad")
    with pytest.raises(AssertionError, match="no line to read"):
        target.outcome(b"long")
    feeder = Feeder(target, tmp_path, seconds=60)
    for content in (b"good", b"bad", b"long"):
        feeder.feed(content)
    feeder.save()
    kept = (tmp_path / FOUND).read_text()
    assert b"bad".hex() in kept
    assert b"long".hex() in kept
