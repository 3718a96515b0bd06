"""Each benchmark runs at a tiny scale: table, last line, files."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import accounting, dp_sgd, harness, processes, ray_round, sampling
from benchmarks.harness import Alternative, Result
from tests.benchmarks.quick import last_line


def test_dp_sgd(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = last_line(dp_sgd, capsys, "--out", str(tmp_path))
    for batch in dp_sgd.BATCHES:
        for name in ("vs_non_private_{}_without_noise", "vs_non_private_{}", "vs_opacus_ghost_{}"):
            assert found["ratios"][name.format(batch)] > 0
    saved = json.loads((tmp_path / "dp_sgd.json").read_text())
    assert saved["ratios"] == found["ratios"]
    steps = 7 * len(dp_sgd.BATCHES)
    frontier = sum(m // 2 < rows for rows in dp_sgd.BATCHES for m in dp_sgd.SUMMED_TOGETHER)
    assert len(saved["cells"]) == steps + frontier
    for text in (p.read_text() for p in tmp_path.iterdir()):
        assert saved["commit"] in text
        assert saved["processor"] in text
        assert socket.gethostname() not in re.findall(r"[\w.-]+", text)
        assert str(Path(harness.__file__).parent.parent) not in text


def test_both_private_steps_of_dp_sgd_make_the_same_clipped_gradient() -> None:
    """Ours and Opacus' compute the same thing, or comparing their times says nothing."""
    batch, model = dp_sgd.batch_of(16), dp_sgd.QUICK_MODEL

    class Silent:
        def add_gaussian(self, values: Any, *, out: Any, **_: Any) -> Any:
            out[:] = values
            return out

    ours = dp_sgd.PrivateStep(model, batch, None)
    ghost = dp_sgd.GhostStep(model, batch, Silent())  # type: ignore[arg-type]
    ours()
    ghost()
    mine = ours._gradient
    other = torch.cat([p.grad.reshape(-1) for p in ghost._module.parameters()])
    assert mine.norm() > 0.01
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)


def test_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(sampling, capsys)
    assert found["amx"] is torch.cpu._is_amx_tile_supported()
    assert (found["ratios"]["bf16_vs_fp32"] is None) is not found["amx"]
    assert 0 <= found["ratios"]["marginal_difference"] < 0.05


def test_sampling_of_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    result = sampling.main(["--trajectories", "--scale", "quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "sampling_trajectories"
    assert [cell["precision"] for cell in result.cells] == ["fp32", "bf16"]
    ratios = found["ratios"]
    assert ratios["of_20_minutes"] == ratios[f"of_20_minutes_{found['auto']}"] > 0
    assert "drawn to the last" in result.notes[0]


def test_accounting_times_a_computation_and_no_memory_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = last_line(accounting, capsys)
    assert found["ratios"]["calibrate_seconds"] > 0.02, "a remembered figure takes microseconds"
    assert found["ratios"]["certify_seconds"] > 0.004


@pytest.mark.slow
def test_ray_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(ray_round, capsys)
    assert 0.5 < found["ratios"]["ray_vs_local"] < 10
    assert found["ratios"]["memory_last_vs_first"] < 1.2


def test_alternatives_take_turns_and_settling_counts_as_cpu_time_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    now = {"wall": 0.0, "cpu": 0.0}  # clocks that no load of the machine moves
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=lambda: now["wall"]))

    def wait(name: str) -> None:
        order.append(name)
        now["wall"] += 0.5

    def burn() -> None:
        now["wall"] += 2.0
        now["cpu"] += 1.0

    def alternative(name: str, settle: Callable[[], None]) -> Alternative:
        return Alternative(run=lambda: wait(name), settle=settle, cpu_clock=lambda: now["cpu"])

    timings = harness.interleave(
        {"a": alternative("a", burn), "b": alternative("b", lambda: None)}, turns=3, runs_a_turn=2
    )
    assert "".join(order) == "ab" + "aabb" + "bbaa" + "aabb"
    assert timings["a"].cpu == (0.5,) * 3
    assert timings["b"].cpu == (0.0,) * 3
    assert timings["a"].wall == timings["b"].wall == (0.5,) * 3
    assert Alternative(run=burn).cpu_clock is time.process_time


def test_the_family_counts_children() -> None:
    code = (
        "import sys, time\n"
        "while time.process_time() < 0.5: pass\n"
        "print(flush=True); sys.stdin.read()"
    )
    before = processes.cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert processes.family()[child.pid].startswith(sys.executable)
        assert processes.cpu_seconds() - before >= 0.45
        assert processes.memory_bytes(sys.executable) > 1e6
        child.communicate()


def test_results_without_a_figure_show_a_dash() -> None:
    assert harness.table([{"a": None, "b": 1234.5, "c": 0.12345, "d": 3}]).splitlines()[2] == (
        "| - | 1,234 | 0.1235 | 3 |"
    )
    assert Result(cells=[], ratios={}).notes == ()
