"""The benchmark of rollouts at a tiny scale, and that its alternatives do the same work."""

import json

import pytest
import torch

from benchmarks import harness, model_rollouts
from benchmarks.model_rollouts import PROBLEMS, QUICK, Problem


def test_model_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    result = harness.main("model_rollouts", model_rollouts.run, ["--scale", "quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "model_rollouts"
    assert len(result.cells) == 2 * len(PROBLEMS)
    for problem in PROBLEMS:
        assert found["ratios"][f"{problem}_over_asked"] > 0
        assert found["ratios"][f"{problem}_vs_plain_loop"] > 0
        assert found["ratios"][f"{problem}_vs_rllib"] is None


def test_both_loops_take_the_same_steps_with_as_many_weights() -> None:
    problem = Problem(PROBLEMS["pendulum"], QUICK)
    ours, plain = problem.ours(), problem.plain()
    before = [one.detach().clone() for one in plain.actor.parameters()]
    ours.advance(5)
    for _ in range(5):
        plain()
    assert ours.steps == 5
    assert len(ours.state()["buffer.rows"]) == plain.size
    weights = [
        sum(one.numel() for one in network.parameters())
        for network in (ours.networks.actor, ours.networks.critic)
    ]
    own = [
        sum(one.numel() for network in networks for one in network.parameters())
        for networks in ([plain.actor], plain.critics)
    ]
    assert weights == own
    moved = zip(before, plain.actor.parameters(), strict=True)
    assert all(not torch.equal(old, new) for old, new in moved)
