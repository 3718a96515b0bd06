"""The value of a policy through the whole program: charge, crash, resume, certificate, report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import (
    ConfigError,
    UnsafeError,
    UselessError,
    VerificationError,
)
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.policy_value.program import SumProgram
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds.judged import MADE, REAL, Judged, Measured, stays


class Killed(BaseException):
    """Ends a run as a kill does."""


@pytest.fixture
def world(tmp_path: Path) -> Judged:
    return Judged(tmp_path).budget()


def figures(world: Judged, name: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.folder / name / "value.json").read_text())
    return found


def test_a_run_ends_in_figures_a_policy_and_a_certificate(world: Judged) -> None:
    result = world.run(key=None)
    verify_certificate(result.directory.certificate)
    (stage,) = result.certificate.stages
    assert result.certificate.epsilon == pytest.approx(2.0)
    assert result.certificate.delta == 0
    assert [event.kind for event in stage.events] == ["discrete_laplace"]
    assert {output.id for output in result.certificate.outputs} == {
        "value.json",
        "policy.safetensors",
    }
    found = figures(world)
    planned = plan_run(world.config()).facts()["noise_of_value"]
    assert found["noise of a mean"] == pytest.approx(planned, rel=1e-3)
    report = json.loads((result.directory.path / "report.json").read_text())
    assert "What the policy would earn" in {one["title"] for one in report["sections"]}
    (account,) = world.ledger.accounts()
    assert account.spent_epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_do_not_change_the_figures(world: Judged, workers: int) -> None:
    world.run("two")
    world.run("other", runtime__workers=workers)
    assert figures(world, "two") == figures(world, "other")


@pytest.mark.parametrize("after", [False, True], ids=["before the draw", "after it"])
def test_a_killed_run_goes_on_and_draws_once(
    world: Judged, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    right = SumProgram.step
    draws = []

    def step(self: SumProgram, *rest: Any, **named: Any) -> None:
        draws.append(1)
        right(self, *rest, **named)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(SumProgram, "step", step)
    where = "finish" if after else "work"
    with monkeypatch.context() as patch:
        patch.setattr(
            f"distributed_privrl.methods.policy_value.method.PolicyValueMethod.{where}", killed
        )
        with pytest.raises(Killed):
            world.run()
    world.run(resume=True)
    assert len(draws) == 1
    world.run("undisturbed")
    assert figures(world) == figures(world, "undisturbed")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_reading_of_a_single_row_ends_a_run(tmp_path: Path) -> None:
    """What a file can hold, at first, middle and last places of stays, changes figures at most."""
    real = Measured.stays(3)
    huge = np.array([1e17, -1e19, 1e25, np.finfo(np.float32).max, -3e38, np.nan], np.float32)
    readings, rewards = real.observations.copy(), real.rewards.copy()
    for patient, value in enumerate(huge):
        for place in range(Measured.steps + 1):
            stay = patient * 5 + place
            readings[stay * (Measured.steps + 1) + place, place % 2] = value
        rewards[patient * Measured.steps] = value
    world = Measured(tmp_path, replace(real, observations=readings, rewards=rewards)).budget()
    verify_certificate(world.run(key=None).directory.certificate)


def test_a_release_must_be_one(world: Judged) -> None:
    world.write("other/stays-v0", stays(9))
    with pytest.raises(UnsafeError, match="no valid certificate"):
        world.run(model__release="other/stays-v0")
    with pytest.raises(ConfigError, match="all be different"):
        world.run(model__release=REAL)
    broken = world.store.info(MADE).certificate | {"epsilon": 0.5}
    world.store.update_metadata(MADE, {CERTIFICATE_KEY: broken})
    with pytest.raises(VerificationError):
        world.run()
    assert not world.ledger.entries()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__unit": "transition"}, "whole episodes"),
        ({"data__bounds": "environment"}, "no meaning"),
        ({"privacy__accountant": "rdp"}, "leave it out"),
        ({"training__trainer": "nobody"}, "unknown trainer"),
        ({"training__trainer": "td3bc"}, "Discrete|Box"),
        ({"evaluation": {"trainers": ["bc"]}}, "releases none"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: Judged, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        world.run(**changes)
    assert not world.ledger.entries()


def test_noise_that_hides_the_value_is_refused(world: Judged) -> None:
    hopeless = {"privacy__epsilon": 0.05}
    verdict = plan_run(world.config(**hopeless)).verdict
    assert verdict is not None
    assert verdict.grade == "hopeless"
    with pytest.raises(UselessError, match="of what returns may differ by"):
        world.run(**hopeless)
    assert plan_run(world.config(data__units=6000)).verdict.grade == "fine"  # type: ignore[union-attr]


def test_without_privacy_everything_is_private(world: Judged) -> None:
    result = world.run(privacy__epsilon=None)
    assert result.certificate.status == "non_private"
    assert not (result.directory.path / "value.json").exists()
    assert (result.directory.private / "value.json").exists()
