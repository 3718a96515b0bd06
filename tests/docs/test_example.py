"""The README's example works as it stands, from the pasted table to the exported one."""

import sys
from pathlib import Path

import pandas as pd
import pytest

import distributed_privrl as pr
from tests.cli.conftest import Workplace
from tests.docs.pages import ROOT, command_lines, fences

README = ROOT / "README.md"


def test_the_example_of_the_readme_works(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("mujoco", "gymnasium_robotics"):  # what is said to need no extra
        monkeypatch.setitem(sys.modules, module, None)
    files = {
        fence.name: fence.text
        for language in ("csv", "yaml")
        for fence in fences(README, language)
        if fence.name
    }
    assert set(files) == {"stays.csv", "schema.yaml", "bounds.yaml", "stays.yaml"}
    folder = workplace.folder
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    lines = command_lines(README)
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("privrl import")) :][:6]
    for line in lines:
        words = line.split()[1:]
        if words[0] == "run":
            words += ["-o", "runtime.executor=local"]
        done = workplace.privrl(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        if words[0] == "plan":
            assert "each patient_id" in done.stdout
    synthetic = pd.read_csv("stays-private.csv")
    assert len(synthetic) == 500
    assert synthetic[["observation_0", "observation_1"]].stack().between(0, 300).all()
    verification = pr.verify_certificate(
        Path("runs/stays/certificate.json"),
        ledger=pr.Ledger(workplace.ledger),
        outputs_root=workplace.datasets,
    )
    assert verification.epsilon <= 8
    assert verification.ledger_checked
    assert not verification.outputs_missing
