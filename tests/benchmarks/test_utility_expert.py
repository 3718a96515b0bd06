import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import utility_expert as benchmark
from benchmarks.utility_expert import Cell, Setting, result_of
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.experiments.registry import parse_config


def row(
    variant: str, epsilon: float | None, seed: int, normalised: float, experts: int = 3000
) -> dict[str, Any]:
    return {
        "environment": "cartpole",
        "experts": experts,
        "agent": "discrete_cql",
        "variant": variant,
        "epsilon": epsilon,
        "seed": seed,
        "return": 1000 * normalised,
        "normalised": normalised,
        "prefixes": None,
        "released_steps": None,
        "certified_epsilon": epsilon,
        "noise_multiplier": None,
        "cpu_s": 1,
    }


def test_shares_are_of_the_same_agent_without_privacy() -> None:
    rows = [
        row("non_private", None, 0, 0.9),
        row("non_private", None, 1, 0.7),
        row("ours", 10.0, 0, 0.4),
        row("ours", 10.0, 1, 0.8),
    ]
    result = result_of(rows)
    assert result.ratios == {
        "cartpole-discrete_cql-non_private-none": pytest.approx(1.0),
        "cartpole-discrete_cql-ours-10": pytest.approx(0.75),
    }
    assert [cell["paper"] for cell in result.cells] == [None, 1.03]
    fewer = [row("non_private", None, 0, 0.5, 1000), row("ours", 10.0, 0, 0.4, 1000)]
    both = result_of([*rows, *fewer])
    assert both.ratios["cartpole-1000-discrete_cql-ours-10"] == pytest.approx(0.8)
    assert [cell["paper"] for cell in both.cells] == [None, 1.03, None, None]
    assert both.ratios["cartpole-discrete_cql-ours-10"] == pytest.approx(0.75)
    assert [cell["seeds"] for cell in result.cells] == [[900.0, 700.0], [400.0, 800.0]]
    assert result_of(rows[2:]).ratios == {"cartpole-discrete_cql-ours-10": None}


@pytest.mark.parametrize("environment", list(benchmark.ENVIRONMENTS))
@pytest.mark.parametrize("variant", list(benchmark.VARIANTS))
@pytest.mark.parametrize("agent", ["discrete_cql", "discrete_bcq"])
def test_every_row_is_a_valid_configuration(
    environment: str, variant: str, agent: str, tmp_path: Path
) -> None:
    private = variant != "non_private"
    setting = Setting(work=tmp_path, data_seed=1, changes=())
    cell = Cell(
        environment=environment,
        experts=1000,
        agent=agent,
        variant=variant,
        epsilon=10.0 if private else None,
        seed=3,
    )
    config: Any = parse_config(benchmark.values_of(cell, setting), source="cell")
    assert (config.privacy.epsilon is not None) == private
    assert (config.seed, config.data.units, config.model.agent) == (3, 1000, agent)
    assert config.training.expected_batch_size == 85
    assert config.privacy.delta < 1 / 1000
    assert Path(config.data.bounds).exists()


@pytest.mark.parametrize("p", list(benchmark.MIX_ROWS))
@pytest.mark.parametrize("environment", ["cartpole", "lunarlander"])
def test_each_mix_has_its_share_of_noisy_steps(environment: str, p: float, tmp_path: Path) -> None:
    setting = Setting(work=tmp_path, data_seed=1, changes=())
    cell = Cell(
        environment=environment,
        agent="discrete_bcq",
        variant=benchmark.MIX_ROWS[p],
        epsilon=benchmark.MIX_EPSILON,
        seed=0,
    )
    config: Any = parse_config(benchmark.values_of(cell, setting), source="cell")
    rounds = 0 if config.filter_share == 1 else config.training.rounds
    noiseless = 0 if config.filter_share == 0 else config.training.noiseless_steps
    assert rounds / (rounds + noiseless) == p
    assert {key[3] for key in benchmark.MIXES} <= benchmark.MIX_ROWS.keys()


def test_cells_that_are_committed_say_of_what_they_were_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "quick", "--seeds", "2", "--first-seed", "1", "--parallel", "1"]
    arguments += ["--agents", "discrete_bcq", "--variants", "p 0.8", "--epsilons", "20"]
    arguments += ["--no-reference", "--work", str(tmp_path / "work")]
    arguments += ["--cells", str(tmp_path / "cells")]
    benchmark.main(arguments)
    (kept,) = (tmp_path / "cells").iterdir()
    assert kept.name == "cartpole_40_discrete_bcq_p_0_8_20-1.json"
    found = json.loads(kept.read_text())
    assert (found["data_seed"], found["changes"], found["seed"]) == (1, [], 1)
    assert found["made"].keys() == {"commit", "date", "processor", "load_at_start"}
    assert not (tmp_path / "work" / "cells").exists()
    for other in (["--data-seed", "2"], ["-o", "training.rounds=3"]):
        with pytest.raises(ConfigError, match=r"was made with (data_seed=1|changes=\[\])"):
            benchmark.main([*arguments, *other])
    capsys.readouterr()


def test_a_cell_is_run_kept_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "quick", "--seeds", "1", "--epsilons", "20", "--parallel", "1"]
    arguments += ["--agents", "discrete_cql", "--variants", "ours"]
    arguments += ["--work", str(tmp_path), "--out", str(tmp_path / "results")]
    benchmark.main(arguments)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {"cartpole-40-discrete_cql-non_private-none", "cartpole-40-discrete_cql-ours-20"}
    assert last["ratios"].keys() == names
    kept = tmp_path / "cells" / "cartpole_40_discrete_cql_ours_20-0.json"
    found = json.loads(kept.read_text())
    assert 0 < found["certified_epsilon"] <= 20
    found["return"] = 5.0
    kept.write_text(json.dumps(found))
    benchmark.main(arguments)
    table = json.loads((tmp_path / "results" / "utility_expert.json").read_text())
    assert [cell["return"] for cell in table["cells"]][1] == 5.0
