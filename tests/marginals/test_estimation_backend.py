"""How jax and mbi are brought into a process: late, silently, in float64, on the CPU."""

import os
import subprocess
import sys

import pytest


def run(script: str, **environment: str) -> str:
    """Return what a fresh process prints, which says nothing on the error stream."""
    inherited = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Return what a process says that brings both in and estimates a model."""
    return run(
        "import sys\n"
        "from distributed_privrl.marginals.estimation_backend import backend\n"
        "print(bool({'jax', 'mbi'} & set(sys.modules)))\n"
        "mbi = backend()\n"
        "assert mbi is backend()\n"
        "import jax\n"
        "print(mbi.__name__, jax.config.jax_enable_x64, jax.config.jax_enable_compilation_cache)\n"
        "print(jax.config.jax_platforms, jax.default_backend())\n"
        "import numpy as np\n"
        "counts = np.array([1e8 + 1, 1e8, 3.0])\n"
        "measured = mbi.LinearMeasurement(counts, ('ward',), 1.0)\n"
        "model = mbi.estimation.MirrorDescent().estimate(\n"
        "    mbi.Domain(['ward'], [3]), [measured], known_total=counts.sum()\n"
        ")\n"
        "found = np.asarray(model.project(('ward',)).datavector())\n"
        "print(found.dtype, np.abs(found.sum() - counts.sum()) < 1e-6)"
    ).splitlines()


def test_it_is_imported_late_silently_and_set_up(said: list[str]) -> None:
    assert said[:3] == ["False", "mbi True False", "cpu cpu"]


def test_estimates_are_float64_and_as_exact(said: list[str]) -> None:
    assert said[3:] == ["float64 True"]


@pytest.mark.parametrize(
    ("chosen", "environment"),
    [("", {"JAX_PLATFORMS": "cuda"}), ("jax.config.update('jax_platforms', 'cuda')", {})],
)
def test_a_platform_that_was_chosen_stays(chosen: str, environment: dict[str, str]) -> None:
    script = (
        "import jax\n"
        f"{chosen}\n"
        "from distributed_privrl.marginals.estimation_backend import backend\n"
        "backend()\n"
        "print(jax.config.jax_platforms)"
    )
    assert run(script, **environment) == "cuda"
