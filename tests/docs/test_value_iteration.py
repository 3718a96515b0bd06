"""The figures of docs/value_iteration.md are those of the code and of the stored benchmarks."""

import json
import math
import re

import pytest

from distributed_privrl.environments.problems import icu_sepsis
from distributed_privrl.methods.value_iteration.config import rho_of
from distributed_privrl.methods.value_iteration.sensitivity import tabular_sensitivities
from distributed_privrl.privacy.calibration import gaussian_multiplier
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "value_iteration.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def test_rho_and_epsilon_are_computed() -> None:
    budget = PrivacyBudget(
        epsilon=1.0, delta=1e-6, unit="trajectory", relation=Relation.REPLACE_ONE
    )
    z = gaussian_multiplier(budget, 20)
    exact, tail = rho_of(z, 20), math.log(1e6)
    usual = (math.sqrt(tail + 1) - math.sqrt(tail)) ** 2
    assert f"rho is {exact:.4f}, where the usual formula would allow {usual:.4f}" in PAGE
    assert 1.2 < math.sqrt(exact / usual) < 1.3, "a quarter more noise"


def test_sensitivities_are_those_of_the_table() -> None:
    def row(relation: Relation) -> str:
        shown = []
        for estimated in (False, True):
            found = tabular_sensitivities(relation, horizon=7, estimate_reward=estimated)
            root = math.sqrt(round(found.l2**2))
            squared = f"{root:g} m" if root.is_integer() else f"sqrt({round(root**2)}) m"
            shown += [f"{found.l1:g} m", squared]
        return " | ".join(shown)

    assert f"| `replace_one` | {row(Relation.REPLACE_ONE)} |" in PAGE
    others = {row(Relation.ADD_OR_REMOVE), row(Relation.REPLACE_WITH_NULL)}
    assert len(others) == 1
    assert f"| `add_or_remove`, `replace_with_null` | {others.pop()} |" in PAGE


def test_first_visits_and_caps_move_counts_as_the_page_says() -> None:
    said = (
        "L1 stays H times the table's, L2 becomes sqrt(H) times it, with m trajectories as with one"
    )
    assert said in PAGE
    relation = Relation.REPLACE_ONE
    for most in (1, 3):
        step = tabular_sensitivities(relation, horizon=20, max_trajectories_per_unit=most)
        first = tabular_sensitivities(
            relation, horizon=20, max_trajectories_per_unit=most, pooled=True, visits="first"
        )
        assert first.l1 == 20 * step.l1
        assert first.l2 == pytest.approx(math.sqrt(20) * step.l2)
        capped = tabular_sensitivities(
            relation,
            horizon=20,
            max_trajectories_per_unit=most,
            pooled=True,
            visits="first",
            max_rows_per_unit=8,
        )
        bound = math.sqrt(8 / most) * step.l2
        assert 0.9 * bound < capped.l2 <= bound * (1 + 1e-12)
        assert capped.l2 == pytest.approx(bound) or most > 1
    assert 1 / math.sqrt(20) < 0.25, "less than a quarter of the noise"


def test_the_cells_of_icu_sepsis_are_counted() -> None:
    mdp = icu_sepsis()
    cells = mdp.states * mdp.actions * mdp.states
    assert f"{cells / 1e6:.1f} million cells a time step" in PAGE
    assert f"{mdp.states * mdp.actions:,} pairs" in PAGE


def test_the_price_of_privacy_is_that_of_the_benchmark() -> None:
    cells = json.loads((RESULTS / "utility_icu_sepsis.json").read_text())["cells"]
    known = {
        (c["counts"], c["states"], c["patients"]): c
        for c in cells
        if c["horizon"] == 20 and c["pessimism"] in ("practical", None)
    }
    pattern = r"^\| ([a-z ]+), (\d+) states \| ([\d,]+) \| (.+) \|$"
    rows = re.findall(pattern, PAGE, re.MULTILINE)
    assert len(rows) >= 12
    for counts, states, patients, figures in rows:
        cell = known[counts, int(states), int(patients.replace(",", ""))]
        shown = [cell[name] for name in ("eps 0.5", "eps 1", "eps 4", "no privacy")]
        assert figures.split(" | ") == [f"{value:.3f}" for value in shown], (counts, states)
    one_rule = re.findall(
        r"^\| once a patient \| 716 +\| practical \| 20 +\| 1000000 +\|(.+)\|$",
        (RESULTS / "utility_icu_sepsis.md").read_text(),
        re.MULTILINE,
    )
    kept = [float(cell) for cell in one_rule[1].split("|")[2:4]]
    cell = known["once a patient", 716, 1_000_000]
    assert (
        f"{kept[0]:.3f} instead of {cell['eps 4']:.3f} at epsilon 4 and {kept[1]:.3f} instead of"
        f" {cell['no privacy']:.3f} without privacy"
    ) in PAGE


def test_the_speed_is_that_of_the_benchmark() -> None:
    result = json.loads((RESULTS / "value_iteration.json").read_text())
    parts = {cell["part"]: cell for cell in result["cells"]}
    for name, words in (("local", "one process"), ("ray", "Ray with two workers")):
        cell = parts[f"whole way, {name}"]
        said = f"{words}: {cell['CPU s']:.0f} s of CPU time, {cell['peak GB']:.1f} GB"
        assert said in PAGE, said
    assert f"{result['ratios']['projection_vs_lp']:,.0f} times" in PAGE
