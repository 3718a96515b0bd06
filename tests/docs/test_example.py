"""The examples of README, PriMORL and expert work as they stand, from table to release."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import distributed_privrl as pr
from distributed_privrl.data.store import DatasetStore
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
    for line in _lines_from_import(README, 6):
        words = line.split()[1:]
        if words[0] == "run":
            words += ["-o", "runtime.executor=local"]
        done = workplace.privrl(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        if words[0] == "plan":
            assert "each patient_id" in done.stdout
    synthetic = pd.read_csv("stays-private.csv")
    assert len(synthetic) == 500
    assert synthetic[["heart_rate", "pressure"]].stack().between(0, 300).all()
    verification = pr.verify_certificate(
        Path("runs/stays/certificate.json"),
        ledger=pr.Ledger(workplace.ledger),
        outputs_root=workplace.datasets,
    )
    assert verification.epsilon <= 8
    assert verification.ledger_checked
    assert not verification.outputs_missing


def _files_of(
    page: Path, table: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Write a page's YAML files, and the table whose header it shows; return the files' names."""
    files = {fence.name: fence.text for fence in fences(page, "yaml") if fence.name}
    name, text = table
    (shown,) = fences(page, "csv")
    assert shown.text.splitlines()[0] == text.splitlines()[0]
    for file, content in {**files, name: text}.items():
        (folder / file).write_text(content)
    monkeypatch.chdir(folder)
    return set(files)


def _lines_from_import(page: Path, count: int) -> list[str]:
    lines = command_lines(page)
    first = next(i for i, line in enumerate(lines) if line.startswith("privrl import"))
    return lines[first:][:count]


def _infusions(patients: int) -> str:
    """Return stays in the form of the page's first rows, up to two of a patient."""
    generator = np.random.default_rng(0)
    rows = ["patient_id,stay_id,hour,pressure,lactate,rate,gain,died"]
    for patient in range(patients):
        for stay in range(int(generator.integers(1, 3))):
            pressure = generator.uniform(50, 80)
            for hour in range(int(generator.integers(4, 9))):
                rate = generator.uniform(0, 1)
                numbers = f"{pressure:.1f},2.0,{rate:.2f},{-abs(pressure - 75) / 30:.2f},0"
                rows.append(f"p{patient},p{patient}s{stay},{hour},{numbers}")
                pressure += 6 * (rate - 0.3) + generator.normal(0, 2)
    return "\n".join(rows) + "\n"


def test_the_example_of_primorl_works_without_a_simulator(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, folder = ROOT / "docs" / "primorl.md", workplace.folder
    files = _files_of(page, ("infusions.csv", _infusions(200)), folder, monkeypatch)
    assert files == {"schema.yaml", "bounds.yaml", "infusions.yaml"}
    small = "-o runtime.executor=local -o data.units=200 -o training.rounds=5 -o"
    small += " training.expected_batch_size=50 -o training.policy.steps=20"
    for line in _lines_from_import(page, 6):
        words = line.split()[1:]
        if words[0] in ("plan", "run"):
            words += small.split()
        done = workplace.privrl(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
    policy = torch.jit.load("runs/infusions/policy.pt")
    assert 0 <= float(policy(torch.tensor([[65.0, 2.0]]))) <= 1
    sections = json.loads(Path("runs/infusions/report.json").read_text())["sections"]
    assert [section["title"] for section in sections] == [
        "The policy was not tried",
        "What the models promise, which is not what the policy earns",
    ]
    assert "no public simulator (data.environment)" in sections[0]["explanation"]


def _bidder(generator: torch.Generator) -> torch.nn.Sequential:
    made = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for weights in made.parameters():
            weights.normal_(generator=generator)
    return made


def _bids(networks: dict[str, torch.nn.Sequential]) -> str:
    """Return eight sessions of each bidder, who strays in a tenth of the steps."""
    generator = np.random.default_rng(0)
    rows = ["algorithm,session,step,price,stock,bid,gain,over"]
    for name, network in networks.items():
        states = generator.uniform(0, 1, (8, 6, 2)).round(2)
        with torch.no_grad():
            scores = network(torch.from_numpy((states - 0.5) / 0.5).float())
        bids = np.where(generator.random((8, 6)) < 0.1, 1, 0) ^ scores.argmax(-1).numpy()
        rows += [
            f"{name},{name}s{session},{step},{price:.2f},{stock:.2f},{bids[session, step]},"
            f"{bids[session, step] * price:.2f},{int(step == 5)}"
            for session in range(8)
            for step, (price, stock) in enumerate(states[session])
        ]
    return "\n".join(rows) + "\n"


def test_the_example_of_own_experts_works(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, folder = ROOT / "docs" / "expert.md", workplace.folder
    generator = torch.Generator().manual_seed(0)
    one = _bidder(generator)  # most bidders are alike, so that there is something stable
    networks = {f"a{number}": one if number % 4 else _bidder(generator) for number in range(600)}
    files = _files_of(page, ("bids.csv", _bids(networks)), folder, monkeypatch)
    assert files == {"schema.yaml", "bounds.yaml", "bids.yaml"}
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(workplace.datasets))
    (code,) = fences(page, "python")
    for line in _lines_from_import(page, 5):
        words = line.split()[1:]
        if words[0] == "run":
            words += ["-o", "runtime.executor=local", "-o", "training.rounds=3"]
        done = workplace.privrl(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        if words[0] == "import":
            exec(compile(code.text, str(page), "exec"), {"networks": networks})
    stable = DatasetStore(workplace.datasets).read_trajectories("bids/stable-v0")
    assert len(stable)
    assert stable.lengths.max() <= 6
    policy = torch.jit.load("runs/bids/policy.pt")
    assert int(policy(torch.tensor([[0.5, 0.5]]))) in (0, 1)
