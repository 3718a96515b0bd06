"""The benchmark of prefix scoring at a tiny scale, and that its alternatives do the same work."""

import json
from pathlib import Path

import pytest

from benchmarks import harness, svt_filter, svt_filter_scaling
from benchmarks.svt_filter import QUICK, Job


def test_svt_filter(capsys: pytest.CaptureFixture[str]) -> None:
    result = harness.main("svt_filter", svt_filter.run, ["--scale", "quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "svt_filter"
    assert found["per_core_second"] > 0
    assert len(result.cells) == 5
    assert set(found["ratios"]) == {
        "per_core_second_over_asked",
        "vs_literal",
        "vs_bare_matrix_products",
        "vs_prefixes_recomputed",
        "memory_over_asked",
        "own_share",
    }
    assert 0 < found["ratios"]["own_share"] < 1


def test_all_forms_count_the_same() -> None:
    job = Job(QUICK)
    few = job.host(QUICK.recomputed).prefix_counts(job.states, job.actions)
    assert job.recomputed() == pytest.approx(few, rel=1e-5, abs=1e-9)
    one = job.host(1).prefix_counts(job.states, job.actions)
    assert job.literal() == pytest.approx(one[-QUICK.literal_steps :], rel=1e-5, abs=1e-9)


@pytest.mark.slow
def test_hosts_are_measured(tmp_path: Path) -> None:
    svt_filter.main(["--scaling", "--scale", "quick", "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "svt_filter_scaling.json").read_text())
    assert [cell["hosts"] for cell in saved["cells"]] == [*svt_filter_scaling.HOSTS[:2]]
    assert all(cell["hosts' CPU s"] > 0 for cell in saved["cells"])
