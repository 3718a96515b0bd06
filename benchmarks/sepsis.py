"""The price of privacy in ICU-Sepsis: exact survival under private policies, and what helps.

Survival is that until the end of the episode, by dynamic programming in the simulator, which is
public; so tuning on it costs nothing, and its noise, which protects nobody, is seeded. Every cell
can be made again from its row alone.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Result
from benchmarks.sepsis_levers import OutcomeCounts, clusters
from benchmarks.sepsis_variants import FIRST_SEED, FULL, HORIZON, QUICK, Scale
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.environments.problems import icu_sepsis
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.methods.value_iteration.counts import CountLayout, CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.pessimism import Pessimism
from distributed_privrl.methods.value_iteration.step_noise import StepNoise, exact_noise
from distributed_privrl.methods.value_iteration.study import (
    exact_value,
    reference_values,
    simulate,
)
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.calibration import gaussian_multiplier
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation

NAME = "utility_icu_sepsis"
RELATION = Relation.REPLACE_ONE


def cells(
    quick: bool, progress: Progress = silent, *, store: Path | None = None
) -> list[dict[str, Any]]:
    """Return the exact survival of each variant, number of patients, epsilon and seed.

    Args:
        quick: a tiny scale.
        progress: told how many cells are done.
        store: JSON lines, a cell each, written as they come; what is in it is not done again.

    Returns:
        the variant's fields, ``patients``, ``epsilon``, ``seed``, ``survival`` (rules of the time
        steps, the last of which goes on) and ``first_rule`` (that of the first step all along).

    Privacy: no event; every trajectory is drawn from the public problem.
    """
    scale = QUICK if quick else FULL
    lines = store.read_text().splitlines() if store is not None and store.exists() else []
    done = {_key(cell): cell for cell in map(json.loads, lines)}
    wanted = list(_cells(scale))
    for patients, seed, group in _by_source(wanted):
        if all(_key(cell) in done for cell in group):
            continue
        bench = _Bench(patients, seed)
        for cell in group:
            if _key(cell) in done:
                continue
            cell |= bench.survival(cell)
            done[_key(cell)] = cell
            if store is not None:
                with store.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
            progress("price of privacy", len(done), len(wanted))
    return [done[_key(cell)] for cell in wanted if _key(cell) in done]


def _cells(scale: Scale) -> Iterator[dict[str, Any]]:
    for variant in scale.variants:
        fields = asdict(variant)
        seeds, sizes = fields.pop("seeds"), fields.pop("patients") or scale.patients
        for patients, epsilon, run in itertools.product(sizes, scale.epsilons, range(seeds)):
            seed = FIRST_SEED + run
            yield {**fields, "patients": patients, "epsilon": epsilon, "seed": seed}


def _key(cell: dict[str, Any]) -> str:
    names = ("counts", "clusters", "pessimism", "horizon", "patients", "epsilon", "seed")
    return json.dumps([cell[name] for name in names])


def _by_source(wanted: list[dict[str, Any]]) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Yield the cells that share trajectories; quick cells of all first, slow ones at the end."""
    for slow, seed in itertools.product((False, True), range(1 + max(c["seed"] for c in wanted))):
        for patients in sorted({c["patients"] for c in wanted}):
            group = [
                c
                for c in wanted
                if (c["patients"], c["seed"], _is_slow(c)) == (patients, seed, slow)
            ]
            if group:
                yield patients, seed, group


def _is_slow(cell: dict[str, Any]) -> bool:
    return cell["counts"] == "each step" and cell["clusters"] is None


class _Bench:
    """Trajectories of one seed, and the counts of the last variant."""

    def __init__(self, patients: int, seed: int) -> None:
        self._patients, self._seed = patients, seed
        self._source = simulate(problem(), units=patients, horizon=HORIZON, seed=seed)
        self._last: tuple[Any, ...] = ()

    def survival(self, cell: dict[str, Any]) -> dict[str, float]:
        """Return the exact survival under the cell's policy."""
        actions = self._outcomes(cell) if cell["counts"] == "outcomes" else self._learned(cell)
        return {
            "survival": exact_value(problem(), actions, HORIZON),
            "first_rule": exact_value(problem(), actions[:1], HORIZON),
        }

    def _outcomes(self, cell: dict[str, Any]) -> NDArray[np.int64]:
        what = ("outcomes", cell["clusters"], cell["horizon"])
        if self._last[:3] != what:
            counted = OutcomeCounts(
                self._source,
                groups=_groups(cell),
                actions=problem().actions,
                horizon=cell["horizon"],
            )
            self._last = (*what, counted)
        z = _noise_multiplier(cell["epsilon"], self._patients, 1)
        policy: NDArray[np.int64] = self._last[3].policy(z, SeededNoise(self._seed))
        return policy

    def _learned(self, cell: dict[str, Any]) -> NDArray[np.int64]:
        what = (cell["counts"], cell["clusters"], cell["horizon"])
        if self._last[:3] != what:
            layout = _layout(cell)
            spec = CountSpec(source=self._source, layout=layout)
            self._last = (*what, layout, LocalExecutor().start(CountWorker, [spec]))
        layout, workers = self._last[3:]
        z = _noise_multiplier(cell["epsilon"], self._patients, layout.releases)
        added = None
        if z is not None:
            added = StepNoise(noise_multiplier=z, exact=exact_noise(layout.dimension))
        mdp = problem()
        program = TabularProgram(
            TabularSettings(
                layout=layout,
                rewards=mdp.rewards[0],
                arrival_rewards=mdp.arrival_rewards,
                pessimism=Pessimism.preset(cell["pessimism"]),
                noise=added,
                relation=RELATION,
            )
        )
        noise = SeededNoise(self._seed) if z is not None else None
        for index in range(program.steps):
            program.step(index, workers, noise)
        return program.policy().actions


def _layout(cell: dict[str, Any]) -> CountLayout:
    mdp = problem()
    return CountLayout(
        states=mdp.states,
        actions=mdp.actions,
        horizon=cell["horizon"],
        reward_range=mdp.reward_range,
        terminal=mdp.terminal,
        clusters=None if cell["clusters"] is None else clusters(cell["clusters"]),
        pooled=cell["counts"] != "each step",
        visits="first" if cell["counts"] == "once a patient" else "every",
    )


def _groups(cell: dict[str, Any]) -> NDArray[np.int64]:
    return np.arange(problem().states) if cell["clusters"] is None else clusters(cell["clusters"])


@cache
def problem() -> TabularMdp:
    """Return ICU-Sepsis."""
    return icu_sepsis(HORIZON)


@cache
def _noise_multiplier(epsilon: float | None, patients: int, releases: int) -> float | None:
    """Return that of each release; delta is a tenth of 1/patients."""
    if epsilon is None:
        return None
    budget = PrivacyBudget(
        epsilon=epsilon, delta=0.1 / patients, unit="trajectory", relation=RELATION
    )
    return gaussian_multiplier(budget, releases)


def references() -> dict[str, float]:
    """Return the survival of the optimal, the clinicians' and the uniform policy, and of action 0.

    Action 0, no treatment, is what is left where every action is as good as every other.
    """
    nothing = np.zeros((1, problem().states), np.int64)
    return {
        **reference_values(problem(), HORIZON),
        "action 0": exact_value(problem(), nothing, HORIZON),
    }


def table(found: Sequence[dict[str, Any]], rule: str = "survival") -> list[dict[str, Any]]:
    """Return a row for each variant and number of patients: mean survival for each epsilon.

    Args:
        found: what `cells` returned.
        rule: ``survival`` or ``first_rule``.
    """
    rows: dict[tuple[Any, ...], dict[float | None, list[float]]] = {}
    for cell in found:
        key = tuple(cell[n] for n in ("counts", "clusters", "pessimism", "horizon", "patients"))
        rows.setdefault(key, {}).setdefault(cell["epsilon"], []).append(cell[rule])
    epsilons = sorted({c["epsilon"] for c in found}, key=lambda e: (e is None, e))
    return [
        {
            "counts": counts,
            "states": problem().states if groups is None else groups + 3,
            "pessimism": pessimism,
            "horizon": horizon,
            "patients": patients,
            **{_column(e): _mean(runs.get(e, [])) for e in epsilons},
            "deviation": max(float(np.std(values)) for values in runs.values()),
            "seeds": min(len(values) for values in runs.values()),
            "runs": {_column(e): values for e, values in runs.items()},
        }
        for (counts, groups, pessimism, horizon, patients), runs in rows.items()
    ]


def _column(epsilon: float | None) -> str:
    return "no privacy" if epsilon is None else f"eps {epsilon:g}"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def result(quick: bool, progress: Progress = silent, *, store: Path | None = None) -> Result:
    """Return `cells` as a benchmark's result.

    Args:
        quick: a tiny scale.
        progress: told how many cells are done.
        store: see `cells`.
    """
    found = cells(quick, progress, store=store)
    rows = table(found)
    known = references()
    ratios: dict[str, float | None] = dict(known)
    for name in [key for key in rows[0] if key.startswith("eps")]:
        for patients in sorted({row["patients"] for row in rows}):
            of = [r[name] for r in rows if r["patients"] == patients and r[name] is not None]
            key = f"best_{name.replace(' ', '_')}_patients_{patients}"
            ratios[key] = max(of, default=None)
    first = [row for row in table(found, "first_rule") if row["counts"] != "outcomes"]
    return Result(cells=rows, ratios=ratios, notes=_notes(first, known))


def _notes(first: Sequence[dict[str, Any]], known: Mapping[str, float]) -> tuple[str, ...]:
    listed = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    return (
        f"Survival until the end of the episode, exact; mean of the seeds. Known: {listed}"
        " (behaviour: the clinicians; action 0: no treatment, taken where nothing is known).",
        "delta is a tenth of 1/patients, replace-one, one trajectory a patient; horizon: time steps"
        " that are counted and planned; states: groups that are told apart, by k-means of public"
        " features, the three terminal ones by themselves. Seeds count from"
        f" {FIRST_SEED} and are those of the trajectories and of the noise; deviation: the largest"
        " between them.",
        "The simulator is public: clusters, constants and levers were chosen on it, at no cost,"
        " with trajectories of seed 0, which is not in the table.",
        "Best figures are the largest of many means: what a choice made in advance gives is lower.",
        "once a patient: pooled, each patient's first visit to a pair of state and action"
        " (model.visits: first); its L2 sensitivity is 2 sqrt(H) instead of 2 H. outcomes: another"
        " algorithm, survivors and deaths by first visit to a pair, L2 sensitivity sqrt(2 H), one"
        " step of improvement on the clinicians; it is not in the package.",
        "",
        "With the first time step's rule all along (model.stationary: true where counts are pooled;"
        " post-processing):",
        "",
        harness.table(first),
        "",
    )
