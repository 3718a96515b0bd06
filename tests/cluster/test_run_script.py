"""`ray submit` with `cluster/run.py`, where `ssh` and `rsync` only record."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "run.py"
RECORDING = '#!/bin/sh\necho "$(basename "$0") $*" >> "$RECORD"\n'
CLUSTER = """
cluster_name: recorded
provider: {type: local, head_ip: 127.0.0.1, worker_ips: []}
auth: {ssh_user: nobody}
"""


def test_ray_copies_the_script_and_runs_it_with_what_follows(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ssh", "rsync"):
        (programs / name).write_text(RECORDING)
        (programs / name).chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    record = tmp_path / "record"
    own = {"HOME": str(tmp_path), "RAY_TMPDIR": str(tmp_path), "RECORD": str(record)}
    words = ["submit", "--start", "--no-config-cache", str(tmp_path / "cluster.yaml"), str(SCRIPT)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            *words,
            "--",
            "stays.yaml",
            "--out",
            "/s/run",
        ],
        env={**os.environ, **own, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = record.read_text().splitlines()
    assert any(line.startswith("rsync") and str(SCRIPT) in line for line in lines)
    assert "python ~/run.py stays.yaml --out /s/run" in lines[-1]


def test_on_the_head_it_is_a_run_that_goes_on_and_is_refused_what_a_job_is(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text((ROOT / "tune_configs" / "apvi_icu_sepsis.yaml").read_text())
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "run.yaml", "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PRIVRL_LEDGER": f"sqlite:///{tmp_path / 'ledger.sqlite'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    assert "a retry would find a fresh budget" in done.stderr
    assert not (tmp_path / "run").exists()
