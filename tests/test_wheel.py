"""What is released is whole: the wheel's files, the versions that files state, the ranges."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT, all_fences

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    Requirement(line)
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in group
]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    junk = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "distributed_privrl", source / "distributed_privrl", ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=source, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_every_file_that_the_package_reads(unpacked: Path) -> None:
    package = ROOT / "distributed_privrl"
    files = {
        path.relative_to(ROOT)
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }
    assert {path.suffix for path in files} >= {".html", ".yaml", ".typed"}
    assert {path for path in files if not (unpacked / path).exists()} == set()


def test_the_wheel_runs_outside_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    (csv,) = (fence for fence in all_fences(ROOT / "README.md") if fence.name == "stays.csv")
    (tmp_path / "stays.csv").write_text(csv.text)
    code = (
        "import distributed_privrl\n"
        "from distributed_privrl.cli.app import app\n"
        "from distributed_privrl.evaluation.report import render_html\n"
        "assert 'NOT FOR RELEASE' in render_html('title', {}, [], 'private')\n"
        "print(distributed_privrl.__file__)\n"
        "app('init stays.csv --out drafts --dataset a-v0 --unit patient_id'.split())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked))
    assert (tmp_path / "drafts" / "schema.yaml").exists()


def test_every_requirement_is_a_range_that_the_lock_lies_in() -> None:
    lock = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.M))
    for one in REQUIREMENTS:
        operators = {part.operator for part in one.specifier}
        assert operators >= {">=", "<"} or operators == {"=="}, f"{one} is no range"
        assert one.specifier.contains(lock[canonicalize_name(one.name)]), one


def test_one_version_is_stated() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {one["type"] for one in citation["references"]} <= {"article", "conference-paper"}
    assert len(citation["references"]) == 5
    texts = (path.read_text() for path in (ROOT / "distributed_privrl").rglob("*.py"))
    assert not any(re.search(r"^__version__", text, re.M) for text in texts)
