import json
import shutil

import pytest


def verify(finished, file, *arguments):
    return finished.workplace.privrl("certificate", "verify", file, *arguments)


def test_a_certificate_of_a_run_holds(finished):
    file = finished.out / "certificate.json"
    plain = verify(finished, file)
    assert plain.exit_code == 0, plain.output
    assert plain.stderr == ""
    assert "3 of 3 unchanged" in plain.stdout
    assert "each transition of clinic/stays-v0 (replace_with_null)" in plain.stdout
    assert "not compared" in plain.stdout
    with_ledger = verify(finished, file, "--ledger", finished.workplace.ledger)
    assert with_ledger.exit_code == 0, with_ledger.output
    assert "agrees" in with_ledger.stdout


@pytest.mark.parametrize(("key", "value"), [("epsilon", 1.0), ("status", "invalid")])
def test_a_changed_certificate_exits_6(finished, tmp_path, key, value):
    changed = json.loads((finished.out / "certificate.json").read_text()) | {key: value}
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(changed))
    result = verify(finished, file)
    assert result.exit_code == 6
    assert result.stderr.count("\n") == 1


def test_another_ledger_knows_nothing_of_it(finished, tmp_path):
    result = verify(
        finished, finished.out / "certificate.json", "--ledger", f"sqlite:///{tmp_path}/l.sqlite"
    )
    assert result.exit_code == 6
    assert "ledger" in result.stderr


def test_changed_and_absent_outputs(finished, tmp_path):
    data = tmp_path / "data"
    file = finished.out / "certificate.json"
    absent = verify(finished, file, "--data", tmp_path)
    assert absent.exit_code == 6
    assert absent.stdout == ""
    assert "transitions.parquet" in absent.stderr
    assert "--data" in absent.stderr
    allowed = verify(finished, file, "--data", tmp_path, "--allow-missing-outputs")
    assert allowed.exit_code == 0
    assert "0 of 3 unchanged" in allowed.stdout
    assert "transitions.parquet" in allowed.stderr
    shutil.copytree(finished.workplace.datasets, data)
    with (data / "clinic/private-v0/data/transitions.parquet").open("ab") as table:
        table.write(b"x")
    assert verify(finished, file, "--data", data, "--allow-missing-outputs").exit_code == 6


def test_no_such_file(finished, tmp_path):
    nowhere = verify(finished, tmp_path / "certificate.json")
    assert nowhere.exit_code == 6
    assert "give the path of certificate.json" in nowhere.stderr
    shutil.copy(finished.out / "config.yaml", tmp_path)
    begun = verify(finished, tmp_path / "certificate.json")
    assert begun.exit_code == 6
    assert f"the run in {tmp_path} is unfinished" in begun.stderr
    assert f"--out {tmp_path} --resume` goes on" in begun.stderr
