"""Numbers that the documentation quotes are those of the code."""

import math
import re

import numpy as np
import pytest

from distributed_privrl.core.config import NoisyBounds
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data import encoding, writing
from distributed_privrl.environments import mazes, reference_returns
from distributed_privrl.experiments import demo_configs
from distributed_privrl.experiments.registry import load_config, plan_run
from distributed_privrl.methods.privorl import pretraining
from distributed_privrl.methods.privorl.config import DenoiserConfig
from distributed_privrl.methods.privorl.network import DiffusionUpdate, RowSynthesizer
from distributed_privrl.privacy import noise, quantiles, verification
from distributed_privrl.privacy.quantiles import QuantileRelease
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds import bounding, gradient, plan, training
from distributed_privrl.rounds.local_update import UnitBatch
from tests.docs.pages import ROOT

PAPER_PARAMETERS, PAPER_ROUNDS = 6.46e6, 574_000


def page(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_demo_is_the_one_described() -> None:
    said = (
        f'makes a "sensitive" maze dataset of {demo_configs.SENSITIVE_STEPS:,} transitions'
        f" and a public one of {demo_configs.PUBLIC_STEPS:,} from another maze, gives the first"
        f" a budget of epsilon {demo_configs.CONFIG['privacy']['epsilon']:g} at delta 5e-7"
    )
    assert demo_configs.CONFIG["privacy"]["delta"] == 5e-7
    assert said in page("docs/quickstart.md")
    assert f"`datasets/{demo_configs.CONFIG['output']['dataset']}/`" in page("README.md")


def test_limits_are_those_of_the_code() -> None:
    assert f"at most {writing.MOST_EPISODES:,} rows" in page("docs/configuration.md")
    assert f"at most {writing.MOST_EPISODES:,} rows" in page("docs/data.md")
    assert f"more than {encoding._LARGEST:g} scales" in page("docs/data.md")
    assert f"more than {encoding._LARGEST:g} standard deviations" in page("docs/privacy.md")
    assert f"(every {pretraining.CHECKPOINT_EVERY:,} steps)" in page("docs/ray.md")
    assert (training.SERVER_RESTARTS, "up to three times" in page("docs/ray.md")) == (3, True)
    assert (plan.SPARE_BLOCKS, "two blocks by default" in page("docs/privorl_n.md")) == (2, True)
    assert f"more than {verification.TOLERANCE * 100:g} %" in page("docs/privacy.md")


def test_what_bounds_need_is_computed() -> None:
    def needed(pair: tuple[float, float]) -> float:
        release = QuantileRelease(
            epsilon=1.0, quantiles=pair, columns=50, relation=Relation.REPLACE_WITH_NULL
        )
        return release.units_needed() / release.choices

    default = NoisyBounds.model_fields["quantiles"].default
    said = page("docs/privacy.md")
    assert f"with the default quantiles {math.ceil(needed(default))} k / E units are needed" in said
    assert round(needed((0.01, 0.99)) / needed(default)) == 5
    assert f"one of {quantiles.CELLS:,} cells" in said
    assert f"widened to 1/{1 / bounding.NARROWEST:.0f} of the range" in said
    assert quantiles.UNIT_WEIGHT == 2**20


def test_what_epsilon_means_is_computed() -> None:
    readme = page("README.md")
    assert f"at 1 the factor is {math.e:.1f}, at 8 it is {math.exp(8):,.0f}" in readme


def test_mazes_are_those_of_the_table() -> None:
    rows = re.findall(
        r"^\| ([\w-]+) \| `([^`]+)` \| `([^`]+)` \| (\d+) x (\d+) \| \((.+?), (.+?)\) \| (\d+) \|$",
        page("docs/environments.md"),
        re.MULTILINE,
    )
    assert len(rows) == len(mazes.ENVIRONMENTS) // 2
    for name, sparse, dense, height, width, x, y, limit in rows:
        maze, is_dense = mazes.ENVIRONMENTS[sparse]
        assert (maze.name, is_dense) == (name, False)
        assert mazes.ENVIRONMENTS[dense] == (maze, True)
        assert (maze.height, maze.width, maze.time_limit) == (int(height), int(width), int(limit))
        assert mazes.maze_layout(sparse).goal == (float(x), float(y))


def test_reference_returns_are_those_of_the_table() -> None:
    rows = re.findall(
        r"^\| `(privrl/[^`]+)` \| ([\d.]+) \| ([\d.]+) \|$",
        page("docs/environments.md"),
        re.MULTILINE,
    )
    assert {name for name, *_ in rows} == set(mazes.ENVIRONMENTS)
    for name, random, planner in rows:
        returns = reference_returns(name)
        assert (f"{returns.random:.2f}", f"{returns.planner:.2f}") == (random, planner)


def test_the_papers_delta_is_refused() -> None:
    path = ROOT / "tune_configs" / "privorl_n_paper.yaml"
    with pytest.raises(UnsafeError, match="is not below 1/units"):
        plan_run(load_config(path, ["privacy.delta=1e-6"]))
    rows = 1e6 + 2e6 + 4e6
    assert math.ceil(10 * rows / 1024) == load_config(path).training.pretraining.steps
    assert math.ceil(5 / 1.28e-4) == 39_063


def test_the_bounds_on_lattice_noise() -> None:
    text = page("docs/threat-model.md")
    assert f"no radius exceeds {math.sqrt(2 * math.log(2.0**65)):.2f}" in text
    truncated = PAPER_PARAMETERS / 2 * PAPER_ROUNDS * 2.0**-65
    assert (f"{truncated:.0e}", "in all 5e-8" in text) == ("5e-08", True)
    assert math.log2(noise.LATTICE_SLACK) == -20
    granularity = noise.lattice_granularity(1.0, int(PAPER_PARAMETERS))
    # Radii lie 2^-64 / (u r) apart where they are exceeded with probability u: further apart than
    # the lattice's spacing / sigma where u is below this.
    probability = 0.44 / granularity * 2.0**-64 / 7
    assert (round(math.log2(probability)), "(2^-36 for that network)" in text) == (-36, True)


def test_float32_sums_move_by_little_more_than_the_clip_norm() -> None:
    assert gradient.SUM_EVERY_ROWS == 1024
    assert 2 * 1024 * 2.0**-24 * 1024 == 1 / 8
    units, width, clip_norm = 4096, 11, 0.5
    update = DiffusionUpdate(
        synthesizer=RowSynthesizer(model=DenoiserConfig(width=64, depth=2), row_width=width),
        seed=0,
        clip_norm=clip_norm,
        micro_batch_rows=128,
    )()
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1, 1, width)).astype(np.float32)
    draws = generator.normal(size=(1, 1, 1 + width))
    parameters = update._flat.numpy().copy()

    def summed(count: int) -> np.ndarray:
        batch = UnitBatch(
            rows=np.repeat(rows, count, axis=0),
            valid=np.ones((count, 1), bool),
            draws=np.repeat(draws, count, axis=0),
        )
        return np.array(update.clipped_sum(parameters, batch), np.float64)

    one = summed(1)
    assert 0.9 * clip_norm < np.linalg.norm(one) <= clip_norm, "the unit is not clipped"
    moved = np.linalg.norm(summed(units) - summed(units - 1) - one)
    assert 0 < moved < 1e-4 * clip_norm
