"""What ``privrl plan`` says of marginals: of which columns, by public facts that are here."""

import json

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.privacy.ledger import Ledger

ROWS = 40
QUICK = ("-o", "model.draws=200", "-o", "training.tables=1", "-o", "training.steps=1")
BOUNDS = "observation: {low: [0, 0, 0], high: [1, 1, 900], step: [0, 0, 1]}\nreward: [0, 1]\n"


@pytest.fixture
def table(workplace):
    """Write a run of marginals and the bounds file that it names; there is no dataset."""
    bounds = workplace.folder / "bounds.yaml"
    bounds.write_text(BOUNDS)
    workplace.config.write_text(
        yaml.safe_dump(
            {
                "method": "marginals",
                "data": {
                    "sensitive": "clinic/table-v0",
                    "unit": "transition",
                    "units": 4043,
                    "bounds": str(bounds),
                },
                "privacy": {"epsilon": 4, "delta": 1e-5},
                "output": {"dataset": "clinic/private-v0", "size": 40},
                "runtime": {"executor": "local"},
            }
        )
    )
    return workplace


def store_table(place, actions):
    source = np.random.default_rng(0)
    rows = Transitions(
        observations=source.random((ROWS, 3)),
        actions=source.integers(0, 2, (ROWS, *actions.shape)),
        rewards=source.random(ROWS),
        next_observations=source.random((ROWS, 3)),
        terminated=np.zeros(ROWS, bool),
        truncated=np.zeros(ROWS, bool),
        unit_ids=np.arange(ROWS),
    )
    DatasetStore(place.datasets).write_transitions(
        "clinic/table-v0",
        rows,
        layout="transitions",
        observation_space=Box(0, 1000, (3,)),
        action_space=actions,
    )


def facts_of(place, *words):
    result = place.privrl("plan", place.config, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_plan_says_of_which_numbers_no_single_value_comes_back(table):
    """Of 9,001 cents none, and of 901 whole numbers each."""
    store_table(table, Discrete(4))
    assert "no_single_values" not in facts_of(table)
    (table.folder / "bounds.yaml").write_text(
        BOUNDS.replace("900], step: [0, 0, 1]", "90], step: [0, 0, .01]")
    )
    (said,) = facts_of(table)["no_single_values"]
    assert said == "observation_2: 9,001 values, more than 8,192"
    shown = table.privrl("plan", table.config)
    assert "none comes back by itself: observation_2: 9,001 values" in " ".join(
        shown.output.split()
    )


def test_a_plan_has_the_columns_that_the_dataset_declares(table, monkeypatch):
    store_table(table, Discrete(4))

    def refuse(*_, **__):
        raise AssertionError("a plan opened sensitive facts")

    for name in ("iter_transitions", "read_transitions", "read_trajectories", "files"):
        monkeypatch.setattr(DatasetStore, name, refuse)
    monkeypatch.setattr(Sensitive, "open", refuse)
    facts = facts_of(table)
    assert facts["columns"] == 9  # 3 before, 3 after, an action, a reward, an end
    assert "columns_assumed" not in facts
    said = table.privrl("plan", table.config).stdout
    assert f"{facts['joint_counts']} joint counts of 9 columns" in said


def test_a_plan_says_what_it_assumes(table):
    """Of a dataset that is elsewhere: from the bounds file, or of nothing."""
    facts = facts_of(table)
    assert facts["columns_assumed"] == 9  # there may be several actions
    assert "for an assumed table of 9 columns" in facts["noise"]
    one_for_all = table.folder / "one.yaml"
    one_for_all.write_text("observation: {low: 0, high: 1}\nreward: [0, 1]\n")
    facts = facts_of(table, "-o", f"data.bounds={one_for_all}")
    assert facts["columns_assumed"] == 12
    assert "for an assumed table of 12 columns" in facts["noise"]
    said = table.privrl("plan", table.config, "-o", f"data.bounds={one_for_all}").stdout
    assert "joint counts for an assumed table of 12 columns" in said


def test_a_plan_of_an_environment_has_its_columns(table):
    words = ("-o", "data.bounds=environment", "-o", "data.environment=privrl/Maze2D-umaze-v0")
    facts = facts_of(table, *words)
    assert facts["columns"] == 12  # 4 before, 4 after, 2 actions, a reward, an end
    assert "columns_assumed" not in facts


def test_values_beside_cells_are_a_histogram_more(table):
    """The file's steps decide on it: its noise is what the run will have."""
    noise = facts_of(table)["column_noise_units"]
    table.folder.joinpath("bounds.yaml").write_text(BOUNDS.replace("0, 0, 1]", "0, 0, 0]"))
    assert noise > facts_of(table)["column_noise_units"]


@pytest.mark.parametrize("verb", ["plan", "config validate"])
def test_a_bounds_file_that_is_missing_or_wrong_is_refused(table, verb):
    file = table.folder / "bounds.yaml"
    for text, message in (
        (None, "there is no such file"),
        ("observation: {low: [0, 0], high: [1, 1, 1]}\nreward: [0, 1]\n", "list 2 and 3 values"),
        (BOUNDS.replace("900", "900.5"), "a whole number of steps"),
        ("observation: [", "bounds.yaml"),
    ):
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        refused = table.privrl(*verb.split(), table.config)
        assert refused.exit_code == 2, refused.output
        assert message in refused.stderr


def test_bounds_of_other_columns_are_refused_where_the_dataset_is_here(table):
    store_table(table, Discrete(4))
    table.folder.joinpath("bounds.yaml").write_text(
        "observation: {low: [0, 0], high: [1, 1]}\nreward: [0, 1]\n"
    )
    for verb in (("plan",), ("config", "validate")):
        refused = table.privrl(*verb, table.config)
        assert refused.exit_code == 2, refused.output
        assert "low has 2 values, its space has 3 columns" in refused.stderr


def test_a_plan_of_too_little_says_so_and_a_run_of_it_is_refused(table):
    store_table(table, Discrete(4))
    few = ("-o", "data.units=1000", "-o", "privacy.epsilon=0.01")
    shown = table.privrl("plan", table.config, *few)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    (first,) = (place for place, line in enumerate(lines) if line.startswith("verdict"))
    said, indent = lines[first], len("guarantee  ")
    assert said[indent:].startswith("hopeless: nothing survives: of 1000 units, ")
    assert lines[first + 1].startswith(" " * indent + "raise privacy.epsilon"), "a line a thought"
    assert facts_of(table, *few)["verdict"]["grade"] == "hopeless"
    budget = ("--epsilon", 1, "--delta", "1e-5", "--unit", "transition")
    made = table.privrl("ledger", "budget", "clinic/table-v0", *budget)
    assert made.exit_code == 0, made.output
    out = table.folder / "run"
    refused = table.privrl("run", table.config, "--out", out, *few)
    assert refused.exit_code == 8, refused.output
    assert "this run would be useless: nothing survives" in refused.stderr
    assert "--anyway" in refused.stderr
    assert not out.exists()
    assert Ledger(table.ledger).entries() == []
    went = table.privrl("run", table.config, "--out", out, *few, "--anyway", *QUICK)
    assert went.exit_code == 0, went.output
    assert "verdict: hopeless" in went.stderr


def test_a_plan_of_enough_is_fine(table):
    shown = table.privrl("plan", table.config).stdout
    verdict = shown.partition("\nverdict ")[2].partition("\ntake ")[0]
    assert verdict.strip().startswith("fine: of 36 pairs of columns ")
    assert "of 4043 units, " in verdict
