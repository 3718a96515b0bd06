import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import utility_primorl as benchmark
from benchmarks.utility_primorl import Cell, Setting, result_of
from distributed_privrl.experiments.registry import parse_config


def row(variant: str, epsilon: float | None, seed: int, earned: float) -> dict[str, Any]:
    return {
        "task": "pendulum",
        "variant": variant,
        "epsilon": epsilon,
        "seed": seed,
        "return": earned,
        "random": -1000.0,
        "expert": -150.0,
        "data": -700.0,
        "certified_epsilon": epsilon,
        "noise_multiplier": None,
        "cpu_s": 1,
    }


def test_shares_count_from_uniform_actions_to_mopo() -> None:
    rows = [
        row("mopo", None, 0, -100.0),
        row("mopo", None, 1, -300.0),
        row("ours", 1.0, 0, -200.0),
        row("ours", 1.0, 1, -1000.0),
    ]
    result = result_of(rows)
    assert result.ratios == {
        "pendulum-mopo-none": pytest.approx(1.0),
        "pendulum-ours-1": pytest.approx(0.5),
    }
    assert [cell["seeds"] for cell in result.cells] == [[-100.0, -300.0], [-200.0, -1000.0]]
    assert result_of(rows[2:]).ratios == {"pendulum-ours-1": None}
    better = row("mopo, no recorded rows", None, 0, 0.0)
    uniform = -1000.0  # the better row of MOPO is what a share is of
    share = (-200.0 - uniform + -1000.0 - uniform) / 2 / (0.0 - uniform)
    assert result_of([*rows, better]).ratios["pendulum-ours-1"] == pytest.approx(share)


@pytest.mark.parametrize("task", list(benchmark.RECIPES))
@pytest.mark.parametrize("variant", [*benchmark.VARIANTS, "3000 trajectories"])
def test_every_row_is_a_valid_configuration(task: str, variant: str, tmp_path: Path) -> None:
    setting = Setting(work=tmp_path, trajectories=None, data_seed=1, changes=())
    private = "privacy.epsilon=null" not in benchmark.VARIANTS.get(variant, ())
    cell = Cell(task=task, variant=variant, epsilon=1.0 if private else None, seed=3)
    count = benchmark._trajectories(cell)
    config: Any = parse_config(benchmark.values_of(cell, setting, count), source="cell")
    assert (config.privacy.epsilon is not None) == private
    assert (config.seed, config.data.sensitive) == (3, setting.dataset(task, count))
    assert Path(config.data.bounds).exists()
    if count is not None:
        whole: Any = parse_config(benchmark.values_of(cell, setting, None), source="cell")
        share = whole.training.expected_batch_size / whole.data.units
        assert (config.data.units, config.training.expected_batch_size / count) == (
            count,
            pytest.approx(share, rel=0.05),
        )


def test_a_cell_is_run_kept_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "quick", "--seeds", "1", "--epsilons", "1", "--parallel", "1"]
    arguments += ["--work", str(tmp_path), "--out", str(tmp_path / "results")]
    benchmark.main(arguments)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["ratios"].keys() == {"pendulum-mopo-none", "pendulum-ours-1"}
    kept = json.loads((tmp_path / "cells" / "pendulum_ours_1-0.json").read_text())
    assert 0 < kept["certified_epsilon"] <= 1
    assert not (tmp_path / "runs" / "pendulum_mopo_none-0" / "policy.safetensors").exists()
    kept["return"] = 5.0
    (tmp_path / "cells" / "pendulum_ours_1-0.json").write_text(json.dumps(kept))
    benchmark.main(arguments)
    table = json.loads((tmp_path / "results" / "utility_primorl.json").read_text())
    assert [cell["return"] for cell in table["cells"]][1] == 5.0


def test_an_unknown_row_is_named(tmp_path: Path) -> None:
    arguments = ["--scale", "quick", "--rows", "best", "--work", str(tmp_path)]
    with pytest.raises(SystemExit, match="'best' is no row"):
        benchmark.main(arguments)
