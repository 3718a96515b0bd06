"""The package's face: a dozen names, and a cheap import."""

import subprocess
import sys

import pytest

import distributed_privrl as pr


def test_public_names_are_pinned() -> None:
    assert pr.__all__ == [
        "BudgetError",
        "Certificate",
        "ConfigError",
        "DatasetStore",
        "Ledger",
        "PrivRLError",
        "PrivacyBudget",
        "UnsafeError",
        "collect",
        "from_table",
        "load",
        "load_config",
        "plan_run",
        "run",
        "verify_certificate",
    ]
    for name in pr.__all__:
        assert getattr(pr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'surprise'"):
        _ = pr.surprise


def test_importing_loads_neither_ray_nor_torch_nor_jax() -> None:
    code = (
        "import sys, distributed_privrl\n"
        "sys.exit(any(m in sys.modules for m in ('ray', 'torch', 'jax', 'mbi')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_everything_but_runtime_works_without_ray() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import distributed_privrl.experiments.demo, distributed_privrl.experiments.evaluate\n"
        "import distributed_privrl.cli.app, distributed_privrl.methods.privorl.transitions"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
