"""The table and the figure of a public sweep, also of one that was cut short."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import sweep_figures
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.experiments.sweeps.trial import run_trial
from tests.worlds.choosing import make_quick
from tests.worlds.swept import public_jobs


def test_a_sweep_that_was_cut_short_has_empty_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_quick(monkeypatch)
    jobs = public_jobs(tmp_path, epsilons=[4, 8], seeds=[0, 1], bins=True)
    words = ["--sweep", str(tmp_path / "out"), "--out", str(tmp_path / "made")]
    with pytest.raises(ConfigError, match="no trial of"):
        sweep_figures.main(words)
    wanted = [(4, 4, 0), (4, 4, 1), (6, 4, 1)]
    chosen = [job for job in jobs if tuple(job.values.values()) in wanted]
    scores = [run_trial(job, LocalExecutor(), ledger="").score for job in chosen]
    sweep_figures.main([*words, "--trials-at", "abcdef0"])

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["benchmark"], last["trials"], last["asked"]) == ("sweep_bins", 3, 8)
    rise = last["ratios"]["bins 6 less 4, epsilon 4"]
    assert rise == pytest.approx(scores[2] - scores[1], abs=1e-4), "of the seed that has both"
    assert last["ratios"]["bins 6 less 4, epsilon 8"] is None
    kept = json.loads((tmp_path / "made" / "sweep_bins.json").read_text())
    assert kept["trials_at"] == "abcdef0"
    both, alone, *none = sorted(kept["cells"], key=lambda cell: -len(cell["score seeds"]))
    assert both["score seeds"] == pytest.approx(scores[:2])
    assert both["score"] == pytest.approx(np.mean(scores[:2]))
    assert both["score 95 %"].endswith("(t, n=2)")
    assert both["score"] == pytest.approx((both["marginal"] + both["correlation"]) / 2)
    assert (alone["bins"], alone["score 95 %"]) == (6, None)
    assert [cell["score"] for cell in none] == [None, None]
    assert (tmp_path / "made" / "sweep_bins.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 8 trials ended" in (tmp_path / "made" / "sweep_bins.md").read_text()
