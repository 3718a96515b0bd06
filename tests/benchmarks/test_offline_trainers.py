"""The benchmark runs at a tiny scale, and compares what computes the same thing."""

import json

import pytest
import torch

from benchmarks import harness, offline_trainers
from benchmarks.offline_trainers import QUICK, AgentStep, LoopEDAC, members_of
from distributed_privrl.agents.edac import EDAC
from distributed_privrl.core.executor import Executor


def test_offline_trainers(capsys: pytest.CaptureFixture[str], ray_executor: Executor) -> None:
    result = harness.main("offline_trainers", offline_trainers.run, ["--scale", "quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "offline_trainers"
    assert set(found["ratios"]) == {
        *("edac_vs_loop", "edac_vs_bound", "iql_vs_plain", "td3bc_vs_plain")
    }
    assert found["bridge_rows"] == QUICK.rows
    assert min(found["ratios"].values()) > 0
    assert len(result.cells) == 7


def test_both_sides_of_edac_take_the_same_steps() -> None:
    ours, loop = AgentStep(EDAC(QUICK.edac)), AgentStep(LoopEDAC(QUICK.edac))
    start = ours.networks.actor[0].weight.detach().clone()
    for _ in range(3):
        ours()
        loop()
    assert (ours.networks.actor[0].weight - start).abs().max() > 1e-4
    for mine, other in zip(
        ours.networks.actor.parameters(), loop.networks.actor.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=2e-5)
    for mine, theirs in (
        (ours.networks.critic, loop.networks.critics),
        (ours.networks.target_critic, loop.networks.targets),
    ):
        for member, other in zip(members_of(mine), theirs, strict=True):
            for one, two in zip(member.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-2, atol=2e-5)
