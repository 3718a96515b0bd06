"""The name of an imported file, and columns that a schema leaves out, leave nothing behind."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.conftest import Workplace

FILE, FOLDER = "lantern-of-ward-7731", "attic-of-the-registrar-5528"
COLUMN, VALUE = "mothers_maiden_name_4417", "okonkwo-vandersteen-9926"
CANARIES = (FILE, FOLDER, COLUMN, VALUE)
PEOPLE = 150
SCHEMA = """
columns:
  observation: [age, pain]
  action: none
  reward: none
  next_observation: none
  unit: who
kinds:
  age: {type: number, whole: true}
  pain: {type: number, whole: true}
"""
CONFIG = {
    "method": "marginals",
    "data": {"sensitive": "trial-v0", "unit": "who", "units": PEOPLE, "bounds": "bounds.yaml"},
    "privacy": {"epsilon": 8, "delta": 1e-4},
    "output": {"dataset": "trial-private-v0", "size": 300},
    "runtime": {"executor": "local"},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "who": [f"p{i}" for i in range(PEOPLE)],
            "age": random.integers(20, 80, PEOPLE),
            "pain": random.integers(0, 9, PEOPLE),
            COLUMN: [f"{VALUE}-{i}" for i in range(PEOPLE)],
        }
    )
    (tmp_path / FOLDER).mkdir()
    table.to_csv(tmp_path / FOLDER / f"{FILE}.csv", index=False)
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "bounds.yaml").write_text("observation: {low: [20, 0], high: [80, 9], step: 1}\n")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return Workplace(tmp_path)


def holding(folder: Path, words: tuple[str, ...]) -> dict[str, list[str]]:
    """Return which files hold which words, in their content or their name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes() + str(path.relative_to(folder)).encode()
            if held := [word for word in words if word.encode() in content]:
                found[str(path.relative_to(folder))] = held
    return found


def test_neither_a_run_nor_its_release_nor_the_ledger_knows_them(place: Workplace) -> None:
    table = f"{FOLDER}/{FILE}.csv"
    made = place.privrl("import", table, "--schema", "schema.yaml", "--dataset", "trial-v0")
    assert made.exit_code == 0, made.output
    refused = place.privrl("run", "config.yaml", "--out", "run")
    budget = place.privrl(*shlex.split(refused.stderr.split("`")[1])[1:])
    made = place.privrl("run", "config.yaml", "--out", "run")
    assert made.exit_code == 0, made.output
    shown = place.privrl("ledger", "show", "--json")
    said = refused.output + budget.output + made.output + shown.output
    assert not [word for word in CANARIES if word in said]
    assert not holding(place.folder / "run", CANARIES)
    for one in place.datasets.iterdir():
        assert not holding(one, CANARIES), one.name
    assert not [word for word in CANARIES if word.encode() in _ledger(place)]
    assert holding(place.folder / FOLDER, (COLUMN, VALUE)), "the table itself has them"


def _ledger(place: Workplace) -> bytes:
    return b"".join(path.read_bytes() for path in place.folder.glob("ledger.sqlite*"))
