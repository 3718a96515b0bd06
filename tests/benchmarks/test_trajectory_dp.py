"""The benchmark of trajectory-level steps: its last line, and that all steps do the same."""

import json

import pytest
import torch

from benchmarks import harness, trajectory_dp


def test_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = harness.main("trajectory_dp", trajectory_dp.run, ["--scale", "quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(result.cells) == 12
    for fragments in trajectory_dp.FRAGMENTS:
        for name in ("vs_non_private_f{}", "vs_loop_f{}", "vs_opacus_f{}"):
            assert found["ratios"][name.format(fragments)] > 0


def test_all_private_steps_make_the_same_clipped_gradient() -> None:
    """They compute the same thing, or comparing their times says nothing."""
    size, batch = trajectory_dp.QUICK.models[""], trajectory_dp.batch_of(3)
    gradients = []
    for make in (trajectory_dp.ours, trajectory_dp.TrajectoryLoop, trajectory_dp.OpacusHooks):
        step = trajectory_dp.PrivateStep(size, batch, make, None)
        step()
        gradients.append(step.gradient)
    assert gradients[0].norm() > 0.01
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=1e-3, atol=1e-6)
