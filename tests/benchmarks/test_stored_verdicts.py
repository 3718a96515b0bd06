"""Verdicts of value iteration and of experts, held against every stored cell that they rest on."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import linear_figure as figure
from benchmarks import sepsis
from benchmarks.cells import CONFIGURATIONS
from benchmarks.harness import RESULTS
from distributed_privrl.experiments.registry import load_config
from distributed_privrl.methods.expert.plan import learned_weights, plan_parts
from distributed_privrl.methods.expert.verdict import verdict_of_experts
from distributed_privrl.methods.value_iteration.linear_settings import (
    Shares,
    Statistic,
    noise_multipliers,
)
from distributed_privrl.methods.value_iteration.resolution import Resolution
from distributed_privrl.methods.value_iteration.sensitivity import tabular_sensitivities
from distributed_privrl.methods.value_iteration.verdict import (
    verdict_of_counts,
    verdict_of_features,
)
from distributed_privrl.privacy.accounting import coarse_figures
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.verdict import Grade, Verdict
from tests.worlds.grid import config

ACTIONS, UNTREATED = 25, 0.7824
CLEAR = 0.004
"""What survival must gain without privacy, so that half of it is not chance."""
Judged = Iterator[tuple[Verdict, float, int]]


def stored(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
    return cells


def sepsis_cells(preset: str = "practical") -> Judged:
    """Yield the verdict on each cell, the share of what it gains that was kept, and its units."""
    asked = config("apvi", training={"pessimism": {"preset": preset}})
    for cell in stored("utility_icu_sepsis"):
        gain = cell["no privacy"] - UNTREATED
        if cell["pessimism"] != preset or (preset == "practical" and gain < CLEAR):
            continue
        pooled = cell["counts"] != "each step"
        moved = tabular_sensitivities(
            sepsis.RELATION,
            horizon=cell["horizon"],
            max_trajectories_per_unit=1,
            estimate_reward=False,
            pooled=pooled,
            visits="first" if cell["counts"] == "once a patient" else "every",
            max_rows_per_unit=None,
        )
        releases, patients = 1 if pooled else cell["horizon"], cell["patients"]
        for epsilon in (0.5, 1.0, 4.0):
            z = sepsis._noise_multiplier(epsilon, patients, releases)
            assert z is not None
            seen = Resolution(
                count_noise=z * moved.l2,
                visits=patients * (cell["horizon"] if pooled else 1),
                cells=ACTIONS * cell["states"],
                cell="state and action",
            )
            kept = (cell[f"eps {epsilon:g}"] - UNTREATED) / max(gain, CLEAR)
            yield verdict_of_counts(asked, seen, patients), kept, patients


def linear_cells(*, ours: bool) -> Judged:
    """Yield likewise for the linear MDPs; nothing learned is what the theorem's constants leave."""
    lines = {one.name: one for one in (figure.PAPER, figure.OURS, *figure.SPLIT)}
    model = {} if ours else {"as_published": True}
    asked = config("vapvi", model=model, training={"pessimism": {"offset": 0.0}})
    cells = [one for one in stored("utility_value_iteration") if one["method"] in lines]
    floors = {one["instance"]: one["K=5"] for one in cells if one["constants"] == "theorem"}
    for cell in cells:
        settings = lines[cell["method"]].settings
        if cell["rho"] is None or cell["constants"] != "tuned":
            continue
        if (cell["method"] == figure.OURS.name) is not ours:
            continue
        halves = settings.get("split", True)
        multiplier = noise_multipliers(
            settings.get("shares", Shares()),
            figure.noise_multiplier_of_rho(cell["rho"], figure.HORIZON),
            halves=halves,
            reuse_gram=settings.get("reuse_gram", False),
            weighs=True,
        )[Statistic.GRAM]
        for name in (one for one in cell if one.startswith("K=")):
            units = int(name[2:])
            seen = Resolution(
                count_noise=multiplier * math.sqrt(2),  # replace-one, one trajectory a unit
                visits=units / 2 if halves else units,
                cells=10,
                cell="feature",
            )
            kept = 1 - cell[name] / floors[cell["instance"]]
            yield verdict_of_features(asked, seen, units), kept, units


LOST = "no measured run kept half"


def by_grade(cells: Judged) -> dict[str, list[float]]:
    """Return the shares that were kept, by grade; those of which nothing is expected as `LOST`."""
    found: dict[str, list[float]] = {name: [] for name in (LOST, *Grade)}
    with coarse_figures():
        for verdict, kept, units in cells:
            found[LOST if LOST in verdict.reason else verdict.grade].append(kept)
            assert verdict.grade is not Grade.HOPELESS  # of one family of problems
            enough = verdict.figures["units_needed"] <= units
            assert enough or verdict.grade is not Grade.FINE
    return found


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("counts", (46, 86, 54)), ("ours", (24, 34, 14)), ("published", (120, 20, 4))],
)
def test_no_fine_run_was_useless_and_none_useful_of_which_nothing_is_expected(
    name: str, numbers: tuple[int, ...]
) -> None:
    cells = sepsis_cells() if name == "counts" else linear_cells(ours=name == "ours")
    found = by_grade(cells)
    assert all(kept >= 0.5 for kept in found[Grade.FINE])
    assert all(kept < 0.5 for kept in found[LOST])
    grades = LOST, Grade.LIMITED, Grade.FINE
    assert tuple(len(found[grade]) for grade in grades) == numbers  # those of the design page


@pytest.mark.parametrize("preset", ["theory", "none"])
def test_penalties_that_were_measured_to_fail_are_never_fine(preset: str) -> None:
    found = by_grade(sepsis_cells(preset))
    assert not found[Grade.FINE]
    assert found[Grade.LIMITED]


@pytest.mark.parametrize("epsilon", [10.0, 2.5])
@pytest.mark.parametrize("row", ["ours", "dp_sgd"])
def test_experts_are_told_where_nothing_was_released_and_nothing_learned(
    epsilon: float, row: str
) -> None:
    changes = [f"privacy.epsilon={epsilon:g}", "output.dataset=null"]
    changes += ["filter.share=0"] if row == "dp_sgd" else []
    asked: Any = load_config(CONFIGURATIONS / "expert_hiv.yaml", changes)
    wanted = {"environment": "hiv", "agent": asked.model.agent, "row": row, "epsilon": epsilon}
    (cell,) = (one for one in stored("utility_expert") if wanted.items() <= one.items())
    with coarse_figures():
        parts = plan_parts(asked, UnitCount(value=asked.data.units, source="declared"))
    known = foreseen_columns(asked.data, None)
    assert known is not None
    weights = learned_weights(asked, known.observation_space, known.action_space)
    verdict = verdict_of_experts(asked, parts.filter, parts.rounds, weights)
    assert verdict is not None
    lost = cell["share"] < 0.01
    assert lost is (row == "ours" and epsilon == 2.5)
    assert verdict.grade is Grade.LIMITED
    assert ("not one prefix was released" in verdict.reason) is lost
    assert "benchmarks/results/utility_expert.json" in verdict.reason
