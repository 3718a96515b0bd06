"""The package's face: a dozen names, and a cheap import."""

import subprocess
import sys
from pathlib import Path

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


def imported(code: str) -> set[str]:
    """Return the modules that a process has after ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_hosts_and_actors_that_add_up_import_no_more_than_that() -> None:
    found = imported("import distributed_privrl.runtime.elastic, distributed_privrl.rounds.totals")
    assert not found & {"torch", "sqlalchemy", "scipy", "ray", "gymnasium"}


def test_exact_noise_and_choices_import_no_tables() -> None:
    found = imported(
        "from distributed_privrl.privacy import choosing, integer_noise as noise\n"
        "for made in (noise.integer_laplace(3.0), noise.integer_gaussian(3.0)):\n"
        "    assert len(made([1, 2])) == 2\n"
        "assert choosing.SecureChooser().choose([0, 900], scale=1.0) == 0\n"
        "assert choosing.SecureChooser().choose_exponential([0, 900], scale=1.0) == 1"
    )
    assert not found & {"pandas", "polars", "sklearn", "scipy"}


def test_private_rounds_import_no_accountant_and_no_compiler(tmp_path: Path) -> None:
    """Each is a second of the start of a worker or of a server."""
    found = imported(
        "from pathlib import Path\n"
        "from distributed_privrl.core.executor import LocalExecutor\n"
        "from tests.worlds.toy_run import ToyRun\n"
        f"toy = ToyRun(folder=Path({str(tmp_path)!r}), block=1)\n"
        "with toy.server(LocalExecutor()) as server:\n"
        "    assert server.call('advance', {'rounds': 1})[0].round_index == 1"
    )
    assert {"torch", "distributed_privrl.updates.book_keeping"} <= found
    assert not found & {"dp_accounting", "scipy.stats", "torch._dynamo", "sympy"}


def test_everything_but_runtime_works_without_ray() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import distributed_privrl.experiments.demo, distributed_privrl.experiments.evaluate\n"
        "import distributed_privrl.cli.app, distributed_privrl.methods.privorl.transitions"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
