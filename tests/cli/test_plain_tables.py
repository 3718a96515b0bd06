"""A table in which nobody decides anything and nothing is a reward, from its draft to an export."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
import yaml

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals import belief
from tests.marginals.programs import chained

PEOPLE, VISITS = 240, 3
SCHEMA = """
columns:
  observation: [arm, age, pain]
  action: none
  reward: none
  trajectory: who
  order: visit
  terminated: last
  unit: who
kinds:
  arm: {type: category, values: [drug, placebo], lasting: true}
  age: {type: number, whole: true, lasting: true}
  pain: {type: number, whole: true}
"""
BOUNDS = "observation: {low: [20, 0], high: [80, 9], step: 1}\n"
CONFIG = {
    "method": "marginals_j",
    "data": {
        "sensitive": "trial-v0",
        "unit": "who",
        "units": PEOPLE,
        "bounds": "bounds.yaml",
        "max_length": VISITS,
    },
    "privacy": {"epsilon": 8, "delta": 1e-4},
    "model": {"rows_per_unit": VISITS, "trajectories_per_unit": 1},
    "training": {"sampling": {"max_length": VISITS}},
    "output": {"dataset": "trial-private-v0", "size": 400},
    "runtime": {"executor": "local"},
}


def trial() -> pd.DataFrame:
    """Return people of two arms, whose pain falls under the drug."""
    random = np.random.default_rng(1)
    arm = np.repeat(random.integers(0, 2, PEOPLE), VISITS)
    visit = np.tile(np.arange(VISITS), PEOPLE)
    pain = np.clip(7 - 2 * visit * (arm == 0) + random.normal(0, 1, len(arm)), 0, 9)
    return pd.DataFrame(
        {
            "who": np.repeat([f"p{i}" for i in range(PEOPLE)], VISITS),
            "visit": visit,
            "arm": np.array(["drug", "placebo"])[arm],
            "age": np.repeat(random.integers(20, 81, PEOPLE), VISITS),
            "pain": np.rint(pain).astype(int),
        }
    )


@pytest.fixture
def clinic(workplace, monkeypatch):
    monkeypatch.chdir(workplace.folder)
    trial().to_csv("trial.csv", index=False)
    (workplace.folder / "schema.yaml").write_text(SCHEMA)
    (workplace.folder / "bounds.yaml").write_text(BOUNDS)
    (workplace.folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    made = workplace.privrl(
        "import", "trial.csv", "--schema", "schema.yaml", "--dataset", "trial-v0"
    )
    assert made.exit_code == 0, made.output
    return workplace


def test_a_trial_without_actions_and_rewards_keeps_what_its_arms_do(clinic):
    refused = clinic.privrl("run", "config.yaml", "--out", "run")
    assert clinic.privrl(*shlex.split(refused.stderr.split("`")[1])[1:]).exit_code == 0
    made = clinic.privrl("run", "config.yaml", "--out", "run")
    assert made.exit_code == 0, made.output
    assert clinic.privrl("certificate", "verify", "run/certificate.json").exit_code == 0
    made = clinic.privrl("export", "trial-private-v0", "--format", "csv", "--out", "out.csv")
    assert made.exit_code == 0, made.output
    found = pd.read_csv("out.csv")
    own = ["arm", "age", "pain"]
    after = [*(f"next_{name}" for name in own), "terminated", "truncated"]
    assert list(found) == ["who", "step", *own, *after]
    assert (found.groupby("who").size() == VISITS).mean() > 0.95
    last = found[found.step == VISITS - 1].groupby("arm").pain.mean()
    assert last["placebo"] - last["drug"] > 1.5  # 4 in the real table
    rows = DatasetStore(clinic.datasets).read_transitions("trial-private-v0", unit="transition")
    assert not rows.actions.any()
    assert not rows.rewards.any()
    public = json.loads((clinic.folder / "run/report.json").read_text())
    private = json.loads((clinic.folder / "run/private/report.json").read_text())
    for report in (public, private):
        for section in report["sections"]:
            named = {metric["name"] for metric in section["metrics"]}
            named |= {metric.get("explanation", "") for metric in section["metrics"]}
            assert not {"action", "reward", "column action", "column reward"} & named
            assert not any("return" in name for name in named), section["title"]
    judged = clinic.privrl("evaluate", "--synthetic", "trial-private-v0", "--out", "judged")
    assert judged.exit_code == 2
    assert "which agents learn from: add --trainers none" in judged.stderr
    options = ("--synthetic", "trial-private-v0", "--out", "judged", "--trainers", "none")
    judged = clinic.privrl("evaluate", *options)
    assert judged.exit_code == 0, judged.output
    card = (clinic.datasets / "trial-private-v0" / "README.md").read_text()
    assert "whose action is always 0, for the table has none" in card
    assert "`reward`" not in card


def test_neither_is_counted_nor_paid_for(clinic, monkeypatch):
    monkeypatch.setattr(belief, "estimated", chained)  # nothing is asked of what it learns
    planned = clinic.privrl("plan", "config.yaml")
    assert "3 observed, 1 observed next, 1 for the end, 1 for the time" in planned.output
    rehearsed = clinic.privrl("rehearse", "config.yaml", "--units", 60, "--out", "rehearsal")
    assert rehearsed.exit_code == 0, rehearsed.output


def test_what_learns_from_decisions_refuses_the_table(clinic):
    values = {**CONFIG, "method": "privorl_ar_j", "model": {}}
    (clinic.folder / "config.yaml").write_text(yaml.safe_dump(values))
    refused = clinic.privrl("run", "config.yaml", "--out", "run")
    assert refused.exit_code == 2
    assert "trial-v0 has no action (action: none), and privorl_ar_j learns from it" in (
        refused.stderr
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("bounds.yaml", "step: 1}", "step: 1}\nreward: [0, 1]", "reward is none in the schema"),
        (
            "schema.yaml",
            "  pain: {type: number, whole: true}\n",
            "  none: {type: flag}\n",
            "none is no observation",
        ),
        ("schema.yaml", "kinds:", "spaces: {action: {type: box}}\nkinds:", "leave its space out"),
        (
            "config.yaml",
            "bounds: bounds.yaml",
            "bounds: {epsilon: 1, search: bounds.yaml}",
            "parts",
        ),
    ],
)
def test_what_is_said_of_what_is_not_there_is_refused(clinic, file, old, new, said):
    path = clinic.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if file == "schema.yaml":
        made = clinic.privrl("import", "trial.csv", "--schema", file, "--dataset", "other-v0")
    else:
        made = clinic.privrl("run", "config.yaml", "--out", "run")
    assert made.exit_code == 2
    assert said in made.stderr


def test_a_table_with_a_reward_must_say_where_it_lies(clinic):
    text = SCHEMA.replace("[arm, age, pain]", "[arm, age, visit]").replace(
        "reward: none", "reward: pain"
    )
    (clinic.folder / "schema.yaml").write_text(text)
    made = clinic.privrl("import", "trial.csv", "--schema", "schema.yaml", "--dataset", "paid-v0")
    assert made.exit_code == 0, made.output
    values = {**CONFIG, "data": {**CONFIG["data"], "sensitive": "paid-v0"}}
    (clinic.folder / "config.yaml").write_text(yaml.safe_dump(values))
    refused = clinic.privrl("run", "config.yaml", "--out", "run")
    assert "reward needs its range, [low, high]" in refused.stderr
