"""The examples of README, PriMORL and expert work as they stand, from table to release."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from gymnasium.spaces import Box

import distributed_privrl as pr
from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.models.layers import mlp
from tests.cli.conftest import Workplace
from tests.docs.pages import ROOT, fences
from tests.docs.running import in_folder, run_code

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
    own_storage(workplace, monkeypatch)
    save_pendulum_policy(folder)
    lines = run_code(README, monkeypatch)
    assert [line.split()[1] for line in lines] == [
        *("import", "ledger", "plan", "run", "certificate", "export", "ledger")
    ]
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


def own_storage(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type in the workplace's folder, on its ledger and datasets."""
    in_folder(workplace.folder, monkeypatch)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(workplace.datasets))
    monkeypatch.setenv("PRIVRL_LEDGER", workplace.ledger)


def save_pendulum_policy(folder: Path) -> None:
    """Save a policy that has learned nothing where a run of the pendulum would leave its own."""
    made = folder / "runs" / "pendulum"
    made.mkdir(parents=True)
    policy = Policy(
        mlp((3, 4, 2), torch.Generator().manual_seed(0)),
        normalisation=Normalisation.identity(3),
        observation_space=Box(-8, 8, (3,)),
        action_space=Box(-2, 2, (1,)),
    )
    policy.save(made / "policy.safetensors")
    export_torchscript(policy, made / "policy.pt")


def _files_of(page: Path, table: tuple[str, str], folder: Path) -> set[str]:
    """Write a page's YAML files, and the table whose header it shows; return the files' names."""
    files = {fence.name: fence.text for fence in fences(page, "yaml") if fence.name}
    name, text = table
    (shown,) = fences(page, "csv")
    assert shown.text.splitlines()[0] == text.splitlines()[0]
    for file, content in {**files, name: text}.items():
        (folder / file).write_text(content)
    return set(files)


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
    files = _files_of(page, ("infusions.csv", _infusions(200)), folder)
    assert files == {"schema.yaml", "bounds.yaml", "infusions.yaml"}
    own_storage(workplace, monkeypatch)
    save_pendulum_policy(folder)
    small = "-o data.units=200 -o training.rounds=5 -o training.expected_batch_size=50"
    small += " -o training.policy.steps=20"

    def smaller(words: Sequence[str]) -> Sequence[str]:
        return small.split() if words[0] in ("plan", "run") else ()

    assert len(run_code(page, monkeypatch, smaller=smaller)) == 6
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
    files = _files_of(page, ("bids.csv", _bids(networks)), folder)
    assert files == {"schema.yaml", "bounds.yaml", "bids.yaml"}
    own_storage(workplace, monkeypatch)

    def smaller(words: Sequence[str]) -> Sequence[str]:
        return ("-o", "training.rounds=3") if words[0] == "run" else ()

    lines = run_code(page, monkeypatch, smaller=smaller, names={"networks": networks})
    assert len(lines) == 5
    stable = DatasetStore(workplace.datasets).read_trajectories("bids/stable-v0")
    assert len(stable)
    assert stable.lengths.max() <= 6
    policy = torch.jit.load("runs/bids/policy.pt")
    assert int(policy(torch.tensor([[0.5, 0.5]]))) in (0, 1)
