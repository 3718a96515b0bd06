"""`privrl sweep` with a private selection: what it would cost, and what it refuses."""

import json

import pytest
import yaml

SWEEP = {
    "method": "privorl_n",
    "data": {
        "sensitive": "clinic/stays-v0",
        "public": ["clinic/public-v0"],
        "unit": "transition",
        "units": 100_000,
    },
    "privacy": {"epsilon": 1, "delta": 1e-6, "accountant": "rdp"},
    "model": {"width": 8, "depth": 1},
    "training": {
        "rounds": 2000,
        "spare": 0,
        "expected_batch_size": 1000,
        "pretraining": {"steps": 2, "batch_size": 16},
        "sampling": {"steps": 3, "chunk_rows": 32},
    },
    "output": {"dataset": "clinic/private-v0", "size": 40},
    "runtime": {"workers": 1, "executor": "local"},
    "search": {"training.pretraining.steps": {"choice": [2, 3]}},
    "selection": {"pays": "private", "law": "geometric", "mean": 20, "score": {"by": "fidelity"}},
}
FIGURES = {"geometric": 2.16, "logarithmic": 1.77, "poisson": 3.21}
"""PRIVACY.md, section 7."""


@pytest.fixture
def place(workplace):
    workplace.config.write_text(yaml.safe_dump(SWEEP))
    return workplace


@pytest.mark.parametrize("law", FIGURES)
def test_a_dry_run_has_the_figures_of_twenty_trials_on_average(place, law):
    changed = ("-o", f"selection.law={law}")
    shown = place.privrl("sweep", place.config, "--dry-run", "--json", *changed)
    assert shown.exit_code == 0, shown.output
    cost = json.loads(shown.stdout)
    assert cost["epsilon"] == pytest.approx(FIGURES[law], abs=0.006)
    assert cost["expected"] == 20
    assert cost["trials"] == []
    words = cost["budget"].split()
    assert words[:4] == ["privrl", "ledger", "budget", "clinic/stays-v0"]
    assert cost["epsilon"] <= float(words[5]) < cost["epsilon"] + 1e-4


def test_a_dry_run_says_that_the_charge_is_one_and_comes_first(place):
    shown = place.privrl("sweep", place.config, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "20 on average" in shown.stdout
    assert "epsilon 2.156, delta 1e-06, charged once, before the start" in shown.stdout
    assert "one run costs 0.9999 by itself" in shown.stdout


def test_a_private_selection_does_not_resume(place):
    words = ("sweep", place.config, "--out", place.folder / "run", "--resume")
    refused = place.privrl(*words)
    assert refused.exit_code == 4
    assert "does not resume" in refused.stderr
    assert "its charge stays" in refused.stderr
    assert not (place.folder / "run").exists()


REFUSED = {
    "a grid": (4, "search={model.width: {grid: [4, 8]}}", "write choice instead of grid"),
    "epsilon": (4, "search={privacy.epsilon: {choice: [1, 2]}}", "changes what a trial costs"),
    "data": (4, "search={data.max_length: {choice: [1, 2]}}", "changes what a trial costs"),
    "the judge": (2, "search={evaluation.steps: {choice: [1, 2]}}", "how trials are judged"),
    "no privacy": (2, "privacy.epsilon=null", "nothing to select privately"),
    "noise": (2, "search={training.expected_batch_size: {choice: [8, 9]}}", "changes the noise"),
    "a count with noise": (2, "data.units={epsilon: 0.1}", "found with noise"),
    "one trial": (2, "selection.mean=1", "mean=1: Input should be greater than 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_one_charge_does_not_cover_is_refused(place, what):
    code, override, message = REFUSED[what]
    refused = place.privrl("sweep", place.config, "--out", place.folder / "run", "-o", override)
    assert refused.exit_code == code, refused.output
    assert message in refused.stderr
    assert not (place.folder / "run").exists()
