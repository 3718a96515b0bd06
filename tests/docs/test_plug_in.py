"""The method of docs/adding-a-method.md, installed from the page: planned, run, killed, audited."""

import importlib
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.experiments.registry import METHODS, _entry_points, load_config
from distributed_privrl.experiments.run import run
from distributed_privrl.privacy.verification import read_certificate
from distributed_privrl.rounds import server
from tests.docs.pages import ROOT, all_fences
from tests.docs.running import in_folder

PAGE = ROOT / "docs" / "adding-a-method.md"
FILES = {fence.name: fence.text for fence in all_fences(PAGE) if fence.name}
(COMMANDS,) = (fence.text for fence in all_fences(PAGE) if fence.language == "sh")
MODULES = ("privrl_vae", "privrl_vae_attack")


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the package as the page says, and stand in a folder with its configuration."""
    site = tmp_path / "site"
    facts = site / "privrl_vae-0.1.dist-info"
    facts.mkdir(parents=True)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    (group,) = project["entry-points"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"][group].items()]
    (facts / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")
    name, version = project["name"], project["version"]
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in FILES.items():
        (site / file).write_text(text)
    (tmp_path / "vae.yaml").write_text(FILES["vae.yaml"])
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "datasets"))
    monkeypatch.setenv("PRIVRL_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    in_folder(tmp_path, monkeypatch)
    yield tmp_path
    for module in MODULES:
        sys.modules.pop(module, None)


def typed(line: str) -> str:
    """Type a command line and return what it prints."""
    done = CliRunner().invoke(app, line.split()[1:], prog_name="privrl")
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.output


def test_the_page_s_method_does_what_the_page_says(folder: Path) -> None:
    assert "vae" in METHODS
    assert len(FILES["privrl_vae.py"].splitlines()) < 150
    assert "latent" in typed("privrl config schema --method vae")
    for line in COMMANDS.splitlines():
        typed(line)
    certificate = read_certificate(folder / "runs" / "vae" / "certificate.json")
    (stage,) = certificate.stages
    assert (stage.name, certificate.status, certificate.spare_rounds > 0) == (
        "rounds",
        "valid",
        True,
    )
    assert certificate.versions["privrl-vae"] == "0.1"
    assert 0 < certificate.epsilon <= 5
    rows = DatasetStore().read_transitions("maze/umaze-private-v0", unit="transition")
    assert len(rows) == 1000


def test_it_is_killed_resumed_verified_and_audited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, budget, *_ = COMMANDS.splitlines()
    typed(collect)
    typed(f"{collect} --seed 1".replace("umaze-v0", "held-out-v0"))
    typed(budget)
    with_attack(folder)
    config, out = load_config(folder / "vae.yaml"), folder / "runs" / "vae"
    right = server.ParameterServer._run_round

    def dies(self: Any) -> None:
        if self._round == 7:
            raise Killed
        right(self)

    with monkeypatch.context() as patch:
        patch.setattr(server.ParameterServer, "_run_round", dies)
        with pytest.raises(Killed):
            run(config, LocalExecutor(), out=out)
    typed("privrl run vae.yaml --out runs/vae --resume")
    ledger = os.environ["PRIVRL_LEDGER"]
    typed(f"privrl certificate verify runs/vae/certificate.json --ledger {ledger}")
    certificate = read_certificate(out / "certificate.json")
    (event,) = certificate.stages[0].events
    assert 20 < event.count <= 20 + config.training.spare_rounds
    typed("privrl audit runs/vae --held-out maze/held-out-v0 --out runs/audit")
    found = json.loads((folder / "runs" / "audit" / "private" / "audit.json").read_text())
    assert "reconstruction" in json.dumps(found)
    assert (folder / "runs" / "audit" / "canary.json").exists()


def with_attack(folder: Path) -> None:
    """Let the entry point name the method with its attack, as the page's section says."""
    line = 'vae = "privrl_vae_attack:vae"'
    assert f"`{line}`" in PAGE.read_text()
    points = folder / "site" / "privrl_vae-0.1.dist-info" / "entry_points.txt"
    points.write_text(points.read_text().replace("privrl_vae:vae", "privrl_vae_attack:vae"))
    _entry_points.cache_clear()  # another process would read it anew
    importlib.invalidate_caches()
