import json
import re

import pytest

HELD_OUT = "clinic/others-v0"
pytestmark = pytest.mark.usefixtures("few_canaries")


@pytest.fixture(scope="module")
def audited(finished, tmp_path_factory):
    made = finished.workplace.privrl(
        *("collect", "maze2d-umaze", "--dataset", HELD_OUT, "--steps", 400, "--seed", 9)
    )
    assert made.exit_code == 0, made.output
    out = tmp_path_factory.mktemp("audited") / "audit"
    result = finished.workplace.privrl("audit", finished.out, "--held-out", HELD_OUT, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result


def test_a_run_is_audited(audited):
    out, result = audited
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert set(lines) == {"mu of one round", "sampled", "report", "not for release"}
    assert lines["report"].strip() == str(out / "canary.json")
    section = next(
        section
        for section in json.loads((out / "private" / "report.json").read_text())["sections"]
        if section["title"] == "One round over canaries"
    )
    assert {metric["kind"] for metric in section["metrics"]} == {"public"}
    assert lines["not for release"].strip() == str(out / "private" / "report.html")
    facts = json.loads((out / "private" / "audit.json").read_text())
    assert facts["membership"]["rounds"] == 3
    page = (out / "private" / "report.html").read_text()
    assert f"held out (unit: {facts['unit']})" in page
    assert (out / "private").stat().st_mode & 0o077 == 0


def test_nothing_private_is_said(audited):
    out, result = audited
    stage = r"(reading rows|membership attack|copying detector|canary round) \d/\d"
    assert all(re.fullmatch(stage, line) for line in result.stderr.splitlines())
    canary = json.loads((out / "canary.json").read_text())
    figures = {f"{value:.4f}" for value in canary["mu"].values()}
    figures |= {f"{value:.4g}" for value in canary["sampled"].values()}
    *said, _, _ = result.stdout.splitlines()  # but for the paths
    assert set(re.findall(r"-?\d[\d.]*\b", " ".join(said))) <= figures


def test_two_audits_are_compared(audited, finished, tmp_path):
    out, _ = audited
    result = finished.workplace.privrl(
        *("audit", finished.out, "--held-out", HELD_OUT, "--out", tmp_path / "a"),
        *("--against", out),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "a" / "private" / "report.json").read_text())
    assert report["sections"][-1]["title"].startswith("Beside the audit of")


def test_a_configuration_is_audited_without_any_dataset(workplace):
    out = workplace.folder / "audit"
    result = workplace.privrl("audit", workplace.config, "--out", out, "-o", "privacy.epsilon=2")
    assert result.exit_code == 0, result.output
    assert str(out / "canary.json") in result.stdout
    first = json.loads((out / "canary.json").read_text())
    assert set(first["mu"]) == {"value", "low", "high", "charged"}
    assert set(first["sampled"]) == {"value", "low", "high", "configured"}
    assert first["noise_source"] == "float64_lattice"
    again = workplace.folder / "again"
    workplace.privrl("audit", workplace.config, "--out", again, "-o", "privacy.epsilon=2")
    second = json.loads((again / "canary.json").read_text())
    assert first["mu"]["charged"] == second["mu"]["charged"]
    assert first["mu"]["value"] != second["mu"]["value"]  # the noise is drawn, not seeded
    assert not (out / "private").exists()
    assert not workplace.datasets.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--held-out", "a-v0"), "--held-out is for the audit of a run"),
        (("--against", "other"), "--against is for the audit of a run"),
        (("--ledger", "sqlite:///x"), "--ledger is for the audit of a run"),
        (("-o", "data.units=null"), "data.units"),
        (("-o", "privacy.epsilon=null"), "nothing to audit"),
    ],
)
def test_what_does_not_go_with_a_configuration(workplace, options, message):
    out = workplace.folder / "audit"
    result = workplace.privrl("audit", workplace.config, "--out", out, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_a_file_is_no_folder(workplace):
    result = workplace.privrl("audit", workplace.config, "--out", workplace.config)
    assert result.exit_code == 2
    assert result.stderr == f"error: --out {workplace.config} is a file: name a folder\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --held-out ID"),
        (("--held-out", "clinic/stays-v0"), "a dataset of the run"),
        (("-o", "seed=3", "--held-out", HELD_OUT), "a run is audited as it was"),
    ],
)
def test_what_does_not_go_with_a_run(finished, tmp_path, options, message):
    out = tmp_path / "audit"
    result = finished.workplace.privrl("audit", finished.out, "--out", out, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_nothing_there_says_what_is_audited(workplace):
    result = workplace.privrl("audit", workplace.folder / "nothing", "--out", "o")
    assert result.exit_code == 2
    assert "give the path of a configuration, a YAML file, or the --out of a" in result.stderr


def test_a_folder_without_a_run(workplace):
    result = workplace.privrl("audit", workplace.folder, "--held-out", "a-v0", "--out", "o")
    assert result.exit_code == 2
    assert "holds no finished run" in result.stderr
