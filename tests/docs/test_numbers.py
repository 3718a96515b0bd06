"""Numbers that the documentation quotes are those of the code."""

import json
import math
import re
from typing import Any

import pytest

from distributed_privrl.core.config import NoisyBounds
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data import encoding, writing
from distributed_privrl.environments import mazes, reference_returns
from distributed_privrl.experiments import demo_configs
from distributed_privrl.experiments.registry import load_config, plan_run
from distributed_privrl.methods.privorl import pretraining
from distributed_privrl.privacy import calibration, noise, quantiles, verification
from distributed_privrl.privacy.quantiles import QuantileRelease
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages import bounding, round_plan, training
from distributed_privrl.updates import book_keeping, exact_sums
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
    assert (round_plan.SPARE_BLOCKS, "two blocks by default" in page("docs/privorl_n.md")) == (
        2,
        True,
    )
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


def results(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(page(f"benchmarks/results/utility_{name}.json"))[
        "cells"
    ]
    return found


def cell_of(name: str, maze: str, epsilon: float | None, variant: str = "ours") -> dict[str, Any]:
    wanted = (maze, variant, epsilon)
    rows = results(name)
    (found,) = (row for row in rows if (row["maze"], row["variant"], row["epsilon"]) == wanted)
    return found


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def test_fidelity_is_that_of_the_stored_tables() -> None:
    readme = page("README.md")
    rows = re.findall(r"^\| epsilon ([\d.]+) \| (.+) \|$", readme, re.MULTILINE)
    assert [epsilon for epsilon, _ in rows] == ["10", "1", ".3"]
    for epsilon, shown in rows:
        for maze, pair in zip(("umaze", "medium", "large"), shown.split(" | "), strict=True):
            cell = cell_of("maze2d", maze, float(epsilon))
            assert pair == f"{short(cell['marginal'])}, {short(cell['correlation'])}", maze
            assert (cell["unit"], cell["delta"]) == ("transition", 1e-7)
    whole = [cell_of("maze2d_j", maze, 1.0) for maze in ("umaze", "medium")]
    said = [
        f"{short(cell['marginal'])}, {short(cell['correlation'])} in {cell['maze']}"
        for cell in whole
    ]
    assert f"delta 1e-6), at epsilon 1: {said[0]} and {said[1]}." in readme


def test_the_tables_to_choose_epsilon_by_are_the_stored_ones() -> None:
    columns = {
        "PrivORL-AR": ("maze2d", "ours"),
        "PrivORL-AR, public physics": ("public_physics", "public physics"),
        "PrivORL-n": ("diffusion", "privorl_n"),
        "PrivORL-AR-j": ("maze2d_j", "ours"),
        "PrivORL-j": ("maze2d_j", "privorl_j"),
        "PrivORL-j-U": ("maze2d_j", "privorl_j_unet"),
    }
    rows = re.findall(
        r"^\| (PrivORL[^|]*) \| (none|[\d.]+) \| (.+) \|$", page("docs/utility.md"), re.MULTILINE
    )
    assert {method for method, *_ in rows} == set(columns)
    for method, epsilon, shown in rows:
        name, variant = columns[method]
        at = None if epsilon == "none" else float(epsilon)
        mazes = ("umaze", "medium", "large", "halfcheetah")
        for maze, figures in zip(mazes, shown.split("|"), strict=False):
            if not figures.strip():
                continue
            robot = maze == "halfcheetah"
            cell = cell_of("mujoco" if robot else name, maze, at, variant)
            known = [cell["marginal"], cell["correlation"], *([] if robot else [cell["in walls"]])]
            said = [short(value) for value in known]
            if "TrajScore (chance, real)" in cell:
                said.append(short(float(cell["TrajScore (chance, real)"].split(" ")[0])))
            assert figures.strip() == ", ".join(said), (method, epsilon, maze)


def earned(cell: dict[str, Any]) -> str:
    low, high = (float(end) for end in cell["iql, range of 3"].split(" .. "))
    return f"{round(cell['iql'])} ({low:.0f} to {abs(high) if high == 0 else high:.0f})"


def test_misses_are_those_of_the_stored_tables() -> None:
    missed = page("README.md").split("## What is missed")[1].split("\n## ")[0]
    for name, maze, epsilon, variant in (
        ("maze2d_j", "medium", 10.0, "ours"),
        ("maze2d_j", "medium", None, "real"),
        ("mujoco", "halfcheetah", 10.0, "ours"),
        ("mujoco", "halfcheetah", None, "real"),
        ("diffusion", "umaze", 1.0, "privorl_n"),
        ("diffusion", "large", 1.0, "privorl_n"),
        ("diffusion", "umaze", None, "real"),
        ("diffusion", "large", None, "real"),
    ):
        assert earned(cell_of(name, maze, epsilon, variant)) in missed, (name, maze, epsilon)
    walls = cell_of("maze2d_j", "umaze", 10.0, "privorl_j")["in walls"]
    assert f"{100 * walls:.0f} % of the states lie in walls" in missed
    landed = {
        (row["agent"], row["row"]): f"{row['normalised']:.2f}".replace("0.", ".")
        for row in results("expert")
        if row["environment"] == "lunarlander"
    }
    cql, bcq = "discrete_cql", "discrete_bcq"
    assert (
        f"{landed[cql, 'ours']} (CQL) and {landed[bcq, 'ours']} (BCQ) of the best policy known,"
        f" without privacy {landed[cql, 'non_private']} and {landed[bcq, 'non_private']}; two"
    ) in missed
    gaps = {
        (row["instance"], row["constants"], row["rho"]): row
        for row in results("value_iteration")
        if row["method"] == "DP-VAPVI"
    }
    leading = [gaps[instance, "leading", 25.0]["K=1000"] for instance in "ab"]
    assert f"{leading[0]:.1f} and {leading[1]:.1f} below the best" in missed
    theorem = {
        round(row[f"K={k}"], 9)
        for (i, c, _), row in gaps.items()
        for k in (5, 1000)
        if (i, c) == ("a", "theorem")
    }
    assert len(theorem) == 1, "nothing is learned, at any rho and K"
    table = page("benchmarks/results/utility_value_iteration.md")
    behaviour = re.search(r"behaviour: a: ([\d.]+), b: ([\d.]+)\.", table)
    assert behaviour is not None
    assert "behaviour is {:.1f} and {:.1f} below".format(*map(float, behaviour.groups())) in missed


def test_every_promise_names_what_checks_it_and_every_miss_its_figures() -> None:
    readme = page("README.md")
    promises = readme.split("## What is promised, and what checks it")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!promise)([^-|].+) \| (.+) \|$", promises, re.MULTILINE)
    assert len(rows) >= 8
    for promise, checked in rows:
        for one in checked.split(", "):
            path, _, function = one.strip("`").partition("::")
            assert one.startswith("`tests/"), promise
            assert (ROOT / path).is_file(), promise
            assert not function or f"def {function}(" in page(path), promise
    misses = re.findall(
        r"^\* (.+)$", readme.split("## What is missed")[1].split("\n## ")[0], re.MULTILINE
    )
    assert len(misses) == 7
    for miss in misses:
        named = re.findall(r"`(benchmarks/results/\w+\.md)`", miss)
        assert named, miss
        assert all((ROOT / path).is_file() for path in named), miss


def test_no_page_but_the_withdrawn_one_states_a_share_of_what_real_rows_give() -> None:
    about_rows = ("README.md", "docs/index.md", "docs/evaluation.md", "docs/utility.md")
    methods = ("docs/privorl_ar.md", "docs/privorl_n.md", "docs/privorl_j.md")
    for name in (*about_rows, *methods):
        found = re.findall(r"\bshares? of \d*\.?\d|paper's shares? (?:is|are)", page(name))
        assert not found, name
    assert "**Every share on this page is withdrawn" in page("docs/design/0003-utility-trials.md")


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


def test_the_ways_of_fine_tuning_are_those_that_were_measured() -> None:
    text = page("docs/dprft.md")
    found = json.loads(page("benchmarks/results/dp_fine_tuning_step.json"))
    rows: dict[str, list[str]] = {}
    for cell in found["cells"]:
        model = f"{cell['model']}, {cell['words']:,} words, {cell['tokens']} tokens"
        rows.setdefault(model, []).append(f"{cell['CPU ms a document']:.1f}")
    for model, figures in rows.items():
        assert f"| {model} | {' | '.join(figures)} |" in text
    ranges = [
        [ratio for name, ratio in found["ratios"].items() if name.startswith(f"vs_{than}_")]
        for than in ("single", "opacus", "non_private")
    ]
    single, opacus, bound = [(min(ratios), max(ratios)) for ratios in ranges]
    faster = "it is {:.1f} to {:.1f} times as fast as one unit after the other, {:.1f} to {:.1f}"
    assert f"{faster.format(*single, *opacus)} times as fast as Opacus" in text
    least, most = (f"{ratio:.2f}".lstrip("0") for ratio in bound)
    assert f"without privacy costs {least} to {most} of it" in text


def test_the_share_of_writing_is_that_of_the_stored_step() -> None:
    found = json.loads(page("benchmarks/results/tuning_step.json"))
    shares = [cell["share of writing"] for cell in found["cells"]]
    shown = [
        f"{one:.2f}".lstrip("0")
        for one in (found["ratios"]["generation_share"], min(shares), max(shares))
    ]
    said = "writing takes {} of a step, the median of five, which had {} to {}".format(*shown)
    assert (len(shares), said in page("docs/dprft.md")) == (5, True)


def test_the_slack_of_float32_sums() -> None:
    text = page("docs/threat-model.md")
    assert (calibration.SUM_SLACK, "at most .008 C (`SUM_SLACK`)" in text) == (0.008, True)
    ratio = book_keeping.CANCELLATION_LIMIT
    units = exact_sums.most_units(1, 1.0), exact_sums.most_units(4, ratio)
    assert (ratio, units) == (16, (259, 32))
    assert "259 units of one row, 32 of four" in text
