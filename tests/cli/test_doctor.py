import os
import sys
from pathlib import Path

import pytest

from distributed_privrl.cli import doctor as module
from distributed_privrl.cli.doctor import GIB, Finding
from distributed_privrl.runtime import session


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine where nothing is wrong, and no package is imported that takes seconds."""
    monkeypatch.setattr(module, "PACKAGES", {"typer": "typer"})
    monkeypatch.setattr(module, "available_memory", lambda: 16 * GIB)
    monkeypatch.setattr(module, "WANTED_DISK", 1)
    monkeypatch.setattr(module, "LEAST_DISK", 0)
    monkeypatch.setattr(session, "TOKEN_FILE", tmp_path / "token")


def test_a_healthy_machine_exits_0_and_makes_nothing(workplace, healthy):
    result = workplace.privrl("doctor")
    assert result.exit_code == 0, result.output
    for name in ("python", "typer", "extra envs", "processor", "threads", "memory", "ledger"):
        assert f" {name} " in result.stdout
    assert "problem" not in result.stdout
    assert not workplace.datasets.exists()
    assert not (workplace.folder / "ledger.sqlite").exists()


def test_a_problem_exits_1_and_says_what_to_do(workplace, healthy, monkeypatch):
    monkeypatch.setattr(module, "PACKAGES", {"no-such-distribution": "nothing"})
    result = workplace.privrl("doctor")
    assert result.exit_code == 1
    assert "not installed; install again" in result.stdout
    assert "1 problem" in result.stderr


def test_packages_are_really_imported(monkeypatch, tmp_path):
    assert set(module.PACKAGES) >= {"ray", "torch", "opendp", "dp-accounting"}
    assert module.package("typer", "typer").level == "ok"
    (tmp_path / "crashing.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crashed = module.package("typer", "crashing")
    assert crashed.level == "problem"
    assert "cannot be imported" in crashed.text
    monkeypatch.setattr(module, "IMPORT_SECONDS", 0.2)
    assert "takes longer" in module.package("typer", "slow").text


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (module.python_version((3, 11, 7)), "ok"),
        (module.python_version((3, 12, 1)), "problem"),
        (module.threads("1"), "ok"),
        (module.threads("8"), "warn"),
        (module.threads(None), "warn"),
        (module.memory(None), "ok"),
        (module.memory(16 * GIB), "ok"),
        (module.memory(4 * GIB), "warn"),
        (module.memory(GIB), "problem"),
    ],
)
def test_levels(finding, level):
    assert finding.level == level
    assert bool(finding.advice) is (level != "ok")


@pytest.mark.parametrize(
    ("flags", "level"), [("avx2 avx512f amx_bf16", "ok"), ("avx2", "warn"), ("sse", "warn")]
)
def test_processor(tmp_path, flags, level):
    path = tmp_path / "cpuinfo"
    path.write_text(f"model name : x\nflags\t\t: fpu {flags}\n")
    finding = module.processor(path)
    assert finding.level == level
    assert ("amx_bf16" in finding.text) is ("amx" in flags)
    assert module.processor(tmp_path / "missing").level == "ok"


def test_environments(monkeypatch):
    monkeypatch.setattr(module, "ENVIRONMENT_MODULES", ("typer",))
    assert module.environments().level == "ok"
    monkeypatch.setattr(module, "ENVIRONMENT_MODULES", ("typer", "no_such_module"))
    finding = module.environments()
    assert finding.level == "warn"
    assert finding.text == "no_such_module missing"
    assert "distributed_privrl[envs]" in finding.advice


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    finding = module.disk("disk", tmp_path / "a" / "b")
    assert "GiB free" in finding.text


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = module.datasets_folder(tmp_path / "data", lambda: 0)
    assert finding.level == "problem"
    assert "MINARI_DATASETS_PATH" in finding.advice
    (new,) = module.ledger_findings(f"sqlite:///{tmp_path}/ledger.sqlite")
    assert new.level == "problem"


def levels(url):
    return [finding.level for finding in module.ledger_findings(url)]


def test_ledgers(finished, tmp_path):
    (found,) = module.ledger_findings(finished.workplace.ledger)
    assert found == Finding(
        level="ok", name="ledger", text=f"1 budgets in {finished.workplace.ledger}"
    )
    assert levels("mysql://host/x") == ["problem"]
    broken = tmp_path / "broken.sqlite"
    broken.write_text("this is no database, not at all " * 100)
    assert levels(f"sqlite:///{broken}") == ["problem"]


@pytest.mark.parametrize(("mode", "level"), [(0o600, "ok"), (0o644, "warn"), (0o640, "warn")])
def test_ray_token(monkeypatch, tmp_path, mode, level):
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(mode)
    monkeypatch.setattr(session, "TOKEN_FILE", path)
    finding = module.ray_token()
    assert finding.level == level
    assert "secret" not in finding.text


def test_existing_parent(tmp_path):
    assert module.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert module.existing_parent(Path("relative")) == Path.cwd()


def test_the_doctor_loads_no_ray_here():
    if "ray" not in sys.modules:
        module.ray_token()
        assert "ray" not in sys.modules
