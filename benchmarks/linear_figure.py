"""Figure 1 of DP-VAPVI: suboptimality of PEVI, VAPVI and DP-VAPVI against episodes K."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from benchmarks.harness import SEED
from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import linear_mdp
from distributed_privrl.environments.tabular import optimal_policy, policy_value
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_presets import theory_pessimism
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    Pessimism,
    Ridge,
    Shares,
    statistics_spec,
)
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.privacy.noise import SeededNoise

HORIZON = 20
INSTANCES: tuple[Literal["a", "b"], ...] = ("a", "b")
BUDGETS = (0.1, 1.0, 5.0, 25.0)
FIGURE_END = 1000
TUNING_RUN = 1000
"""Runs from this number on are for tuning alone."""


def noise_multiplier_of_rho(rho: float, horizon: int) -> float:
    """Return z so that a run of ``horizon`` steps is rho-zCDP: sqrt(H / (2 rho)).

    With equal shares each statistic is rho / (5 H)-zCDP unsplit, and rho / (3 H) in the variance
    half or rho / (2 H) in the value half when split, except at index 0.

    Example:
        >>> noise_multiplier_of_rho(2.5, 20)
        2.0
    """
    return math.sqrt(check_positive("horizon", horizon) / (2 * check_positive("rho", rho)))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is run.

    Args:
        episodes: numbers K; the figure's go to 1000, beyond is where it leads.
        runs: data sets and noises that are averaged.
        tuning_episodes: numbers K that constants are tuned on, together.
        tuning_runs: data sets and noises of the tuning.
        constants: candidates of C; those of PEVI's c are a hundredth.
    """

    episodes: tuple[int, ...] = (5, 10, 20, 50, 100, 200, 500, 1000, 10_000)
    runs: int = 5
    tuning_episodes: tuple[int, ...] = (50, 200, 1000)
    tuning_runs: int = 3
    constants: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)


FULL = Scale()
QUICK = Scale(episodes=(5, 200), runs=1, tuning_episodes=(50,), tuning_runs=1, constants=(0.1,))


@dataclass(frozen=True, kw_only=True)
class Method:
    """A line of the figure, but for its budget.

    Args:
        name: in the table.
        private: whether it has a budget.
        settings: what differs from the defaults of `LinearSettings`.
        ridges: candidates of the tuning; the first goes with the theory's constants.
    """

    name: str
    private: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    ridges: tuple[Ridge, ...] = (Ridge(),)


FREE = tuple(Ridge(penalty=penalty) for penalty in (1.0, 0.1, 0.01))
MATCHED = tuple(Ridge(noise_factor=factor) for factor in (0.5, 1.0, 4.0))
NOISY = (Ridge(shift=True), Ridge(), *MATCHED)

UNSPLIT: dict[str, Any] = {"split": False}
CENTRED: dict[str, Any] = {**UNSPLIT, "centre_values": True}
SHARED: dict[str, Any] = {
    **CENTRED,
    "shares": Shares(variance_gram=0.03, squares=0.03, values=0.03, gram=0.3),
}
REUSED: dict[str, Any] = {**SHARED, "reuse_gram": True}
POOLED: dict[str, Any] = {
    **REUSED,
    "pool_grams": True,
    "shares": Shares(squares=0.03, values=0.03, gram=0.1),
}
UNWEIGHTED: dict[str, Any] = {**POOLED, "reuse_gram": False, "method": "pevi"}

PEVI = Method(name="PEVI", private=False, settings={"method": "pevi"}, ridges=FREE)
VAPVI = Method(name="VAPVI", private=False, settings=UNSPLIT, ridges=FREE)
PAPER = Method(name="DP-VAPVI", settings=UNSPLIT, ridges=NOISY)
OURS = Method(name="DP-VAPVI, ours", settings=POOLED, ridges=MATCHED)
BY_THEOREM = (PEVI, VAPVI, PAPER)
SPLIT = (
    Method(name="VAPVI, split", private=False, ridges=FREE),
    Method(name="DP-VAPVI, split", ridges=NOISY),
)
CENTRED_FREE = (
    Method(
        name="PEVI, centred",
        private=False,
        settings={"method": "pevi", "centre_values": True},
        ridges=FREE,
    ),
    Method(name="VAPVI, centred", private=False, settings=CENTRED, ridges=FREE),
)

LEVERS = (
    Method(name="as published: shift E/2", settings=UNSPLIT, ridges=(Ridge(shift=True),)),
    Method(name="no shift, projection", settings=UNSPLIT),
    Method(name="neither", settings=UNSPLIT, ridges=(Ridge(projection=False),)),
    Method(name="ridge matched to the noise", settings=UNSPLIT, ridges=MATCHED),
    Method(name="matched, halves", ridges=MATCHED),
    Method(
        name="matched, one Gram matrix", settings={**UNSPLIT, "reuse_gram": True}, ridges=MATCHED
    ),
    Method(name="matched, centred values", settings=CENTRED, ridges=MATCHED),
    Method(name=".. + budget shares", settings=SHARED, ridges=MATCHED),
    Method(name=".. + shares, halves", settings={**SHARED, "split": True}, ridges=MATCHED),
    Method(name=".. + shares, one Gram matrix", settings=REUSED, ridges=MATCHED),
    Method(name=".. + pooled over steps (ours)", settings=POOLED, ridges=MATCHED),
    Method(name="ours, no variances (DP-PEVI)", settings=UNWEIGHTED, ridges=MATCHED),
)


class Problem:
    """One of the two MDPs, its data sets and exact values."""

    def __init__(self, instance: Literal["a", "b"]) -> None:
        self.mdp = linear_mdp(instance, HORIZON)
        assert self.mdp.features is not None
        self.features = FeatureMap(table=self.mdp.features)
        self.best = policy_value(self.mdp, optimal_policy(self.mdp)[0])
        self.behaviour_gap = self.best - policy_value(self.mdp, self.mdp.behaviour)
        self._instance = instance
        self._workers: dict[tuple[int, int, bool], LocalWorkerGroup] = {}

    def gap(self, settings: LinearSettings, run: int) -> float:
        """Return the suboptimality of what a run with ``settings.units`` episodes learns."""
        workers, program = self._group(settings, run), LinearProgram(settings)
        noise = None
        if settings.noise_multiplier is not None:
            noise = SeededNoise(Streams(run).integer(f"{self._instance}/{settings.units}"))
        for index in range(HORIZON):
            program.step(index, workers, noise)
        return self.best - policy_value(self.mdp, program.policy().actions)

    @functools.cached_property
    def coverage(self) -> float:
        """Smallest eigenvalue of E[phi phi^T] on the span of the features, over all time steps."""
        reached, smallest = self.mdp.initial, np.inf
        for step in range(HORIZON):
            pairs = reached[:, None] * self.mdp.behaviour[step % len(self.mdp.behaviour)]
            values = np.linalg.eigvalsh(self.features.gram(pairs)[0])
            smallest = min(smallest, values[values > 1e-12].min())
            moves = self.mdp.transitions[step % len(self.mdp.transitions)]
            reached = np.einsum("sa,sat->t", pairs, moves)
        return float(smallest)

    def _group(self, settings: LinearSettings, run: int) -> LocalWorkerGroup:
        key = run, settings.units, settings.halves
        if key not in self._workers:
            # Fewer trajectories of a stream are the beginning of more.
            streams = Streams(SEED).child(f"{self._instance}/{run}")
            chunks = sample_trajectories(self.mdp, trajectories=settings.units, streams=streams)
            data = Trajectories.concatenate(list(chunks))
            spec = statistics_spec(settings, lambda: data)
            self._workers[key] = LocalExecutor().start(StatisticsWorker, [spec])
        return self._workers[key]


@functools.cache
def problem(instance: Literal["a", "b"]) -> Problem:
    """Return an instance, built once."""
    return Problem(instance)


def gaps(
    method: Method,
    instance: Literal["a", "b"],
    *,
    budget: float | None,
    episodes: int,
    runs: Sequence[int],
    ridge: Ridge,
    pessimism: Pessimism,
) -> list[float]:
    """Return the suboptimality of each run."""
    settings = LinearSettings(
        features=problem(instance).features,
        horizon=HORIZON,
        units=episodes,
        early_termination=False,
        noise_multiplier=None if budget is None else noise_multiplier_of_rho(budget, HORIZON),
        ridge=ridge,
        pessimism=pessimism,
        **method.settings,
    )
    return [problem(instance).gap(settings, run) for run in runs]


def penalty(method: Method, constant: float) -> Pessimism:
    """Return the penalty of C = ``constant``, or of c = a hundredth of it for PEVI."""
    pevi = method.settings.get("method") == "pevi"
    return Pessimism(constant=constant / 100 if pevi else constant)


def tuned(
    method: Method,
    scale: Scale,
    *,
    budgets: Sequence[float | None],
    episodes: Sequence[int],
) -> tuple[Ridge, Pessimism]:
    """Return the ridge and penalty that do best on average over budgets, episodes, instances."""
    runs = range(TUNING_RUN, TUNING_RUN + scale.tuning_runs)

    def score(choice: tuple[Ridge, Pessimism]) -> float:
        ridge, pessimism = choice
        cells = [
            gaps(
                method,
                instance,
                budget=budget,
                episodes=count,
                runs=runs,
                ridge=ridge,
                pessimism=pessimism,
            )
            for budget in budgets
            for instance in INSTANCES
            for count in episodes
        ]
        return float(np.mean(cells))

    choices = [(ridge, penalty(method, c)) for ridge in method.ridges for c in scale.constants]
    return min(choices, key=score) if len(choices) > 1 else choices[0]


def curves(
    method: Method,
    constants: Literal["theorem", "leading", "tuned"],
    scale: Scale,
) -> tuple[list[dict[str, Any]], str]:
    """Return a method's rows of the table, and which constants they are for.

    Args:
        method: the method.
        constants: theorem: all of the theorem's terms; leading: C = c = 1 and D = 0; tuned.
        scale: how much is run.
    """
    budgets: tuple[float | None, ...] = BUDGETS if method.private else (None,)
    ridge, pessimism = method.ridges[0], Pessimism(constant=1.0)
    if constants == "tuned":
        ridge, pessimism = tuned(method, scale, budgets=budgets, episodes=scale.tuning_episodes)
    rows = []
    for instance in INSTANCES:
        for budget in budgets:
            if constants == "theorem":
                pessimism = theory_pessimism(
                    method.settings.get("method", "vapvi"),
                    dimension=problem(instance).features.dimension,
                    horizon=HORIZON,
                    rho=budget,
                    coverage=problem(instance).coverage,
                )
            row: dict[str, Any] = {"instance": instance, "constants": constants}
            row |= {"method": method.name, "rho": budget}
            kept: dict[str, list[float]] = {}
            for count in scale.episodes:
                found = gaps(
                    method,
                    instance,
                    budget=budget,
                    episodes=count,
                    runs=range(scale.runs),
                    ridge=ridge,
                    pessimism=pessimism,
                )
                row[f"K={count}"] = float(np.mean(found))
                kept[f"K={count}"] = found
            rows.append({**row, "runs": kept})
    about = f"{method.name}: C or c = {pessimism.constant:g}, {_shown(ridge)}"
    return rows, about


def levers(scale: Scale) -> list[dict[str, Any]]:
    """Return what each lever of the private side does at the figure's largest K.

    Constants and ridges are tuned for each lever and budget; the mean over both instances.
    """
    count = max(count for count in scale.episodes if count <= FIGURE_END)
    rows = []
    for method in LEVERS:
        row: dict[str, Any] = {f"DP-VAPVI at K = {count}": method.name}
        for budget in BUDGETS:
            ridge, pessimism = tuned(method, scale, budgets=(budget,), episodes=(count,))
            found = [
                gaps(
                    method,
                    instance,
                    budget=budget,
                    episodes=count,
                    runs=range(scale.runs),
                    ridge=ridge,
                    pessimism=pessimism,
                )
                for instance in INSTANCES
            ]
            row[f"rho={budget:g}"] = float(np.mean(found))
        rows.append(row)
    return rows


def _shown(ridge: Ridge) -> str:
    parts = [f"lambda = {ridge.penalty:g}"]
    if ridge.shift:
        parts.append("shift E/2")
    if ridge.noise_factor:
        parts.append(f"+ {ridge.noise_factor:g} noise norms")
    return ", ".join(parts)
