"""A release whose rows were replaced: nothing reads it on, and nothing public is written."""

import shutil

import pytest

from tests.cli.conftest import Workplace

RELEASED, SENSITIVE = "clinic/private-v0", "clinic/stays-v0"


@pytest.fixture(scope="module")
def replaced(finished, tmp_path_factory):
    """A copy of a finished run's place, with other rows under the released dataset's name."""
    folder = tmp_path_factory.mktemp("replaced") / "place"
    shutil.copytree(finished.workplace.folder, folder)
    place = Workplace(folder)
    line = ("export", SENSITIVE, "--format", "parquet", "--out", folder / "rows.parquet")
    assert place.privrl(*line).exit_code == 0
    shutil.copy(folder / "rows.parquet", place.datasets / RELEASED / "data/transitions.parquet")
    return place


@pytest.mark.parametrize(
    "line",
    [
        ("evaluate", "--synthetic", RELEASED, "--trainers", "none", "--out"),
        ("export", RELEASED, "--format", "rllib", "--out"),
    ],
)
def test_replaced_rows_are_read_by_nobody(replaced, line):
    out = replaced.folder / line[0]
    result = replaced.privrl(*line, out)
    assert result.exit_code == 6, result.output
    assert "is not what the certificate names" in result.stderr
    assert not out.exists()


def test_replaced_rows_are_in_no_report(replaced):
    run = replaced.folder / "run"
    names = ("report.html", "report.json")
    before = [(run / name).read_bytes() for name in names]
    result = replaced.privrl("report", run)
    assert result.exit_code == 6, result.output
    assert [(run / name).read_bytes() for name in names] == before


def test_a_budget_and_public_rows_exclude_each_other(workplace):
    line = ("collect", "cartpole-mixed", "--steps", 60, "--dataset")
    assert workplace.privrl(*line, "gym/open-v0", "--public").exit_code == 0
    assert workplace.privrl(*line, "gym/own-v0").exit_code == 0
    about = ("--epsilon", "1", "--delta", "1e-6", "--unit", "trajectory")
    refused = workplace.privrl("ledger", "budget", "gym/open-v0", *about)
    assert refused.exit_code == 4
    assert "was declared public" in refused.stderr
    # The same rows (the same seed), now with a budget under the other name.
    assert workplace.privrl("ledger", "budget", "gym/own-v0", *about).exit_code == 0
    out = workplace.folder / "bridge"
    shared = workplace.privrl("export", "gym/open-v0", "--format", "rllib", "--out", out)
    assert shared.exit_code == 4
    assert "have a privacy budget as gym/own-v0" in shared.stderr
    line = ("evaluate", "--synthetic", "gym/open-v0", "--out", out, "--trainers")
    trained = workplace.privrl(*line, "rllib_bc")
    assert trained.exit_code == 4
    assert "have a privacy budget as gym/own-v0" in trained.stderr
    assert not out.exists()
    elsewhere = ("--ledger", f"sqlite:///{workplace.folder / 'other.sqlite'}")
    assert workplace.privrl(*line, "none", *elsewhere).exit_code == 0


def test_what_has_a_budget_is_not_split(workplace):
    line = ("collect", "cartpole-mixed", "--steps", 200, "--dataset", "gym/own-v0")
    assert workplace.privrl(*line).exit_code == 0
    about = ("--epsilon", "1", "--delta", "1e-6", "--unit", "trajectory")
    assert workplace.privrl("ledger", "budget", "gym/own-v0", *about).exit_code == 0
    refused = workplace.privrl("split", "gym/own-v0", "--held-out", 0.5)
    assert refused.exit_code == 4
    assert "split before a budget is set" in refused.stderr
    elsewhere = ("--ledger", f"sqlite:///{workplace.folder / 'other.sqlite'}")
    assert workplace.privrl("split", "gym/own-v0", "--held-out", 0.5, *elsewhere).exit_code == 0
    assert workplace.privrl("ledger", "budget", "gym/own-training-v0", *about).exit_code == 4
