"""Whole runs of the program on a wide table, whose noisy answers and choices are always the same.

Whatever two of them decide differently was decided by exact counts.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals import belief, candidates, cleaning, plan, program
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.tables import JointCount, Maps
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.programs import Adds, Chooses, chained, plan_of, program_of
from tests.marginals.rows import group, step_bounds

WIDE = step_columns(
    Box(0, 40, (1,)),
    Discrete(2),
    step_bounds(high=40.0, reward=0.05),
    next_observation="absolute",
)
"""Numbers of 41 and 21 values, so that parts of all kinds may be counted."""
SETTINGS = {"rows": 2000, "most_cells": 2000, "model_cells": 10**6}
"""Of programs on it, with room for all parts."""
_UNITS, _FACTOR, _TABLES = 10_000, 3.0, 6
_STRIDE = 13
"""With it bins, halves, thirds and fifths are released."""


class SameAnswers(Adds):
    """Noisy counts that do not depend on exact ones; it remembers the exact ones."""

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        super().add_discrete_gaussian(values, standard_deviation=standard_deviation, tag=tag)
        if len(self.asked) == 1:  # all columns, of some weight each
            shares = [np.full(size, 1 / size) for size in WIDE.counted if size]
            expected = _UNITS * np.concatenate(shares)
        else:
            expected = np.full(len(values), _UNITS / len(values))
        source = np.random.default_rng(tag)
        return source.poisson(expected).astype(np.int64) * UNIT_WEIGHT


class SameChoices(Chooses):
    """Takes one candidate after the other, far apart, whatever the scores are."""

    def choose_exponential(self, scores: Any, *, scale: float, tag: int = 0) -> int:
        super().choose_exponential(scores, scale=scale, tag=tag)
        return _STRIDE * len(self.asked) % len(scores)


@dataclass(frozen=True)
class WholeRun:
    """What a run decided, and what it was decided by.

    Args:
        made: the program after its last step.
        noise: was given exact counts.
        chooser: was given scores.
        candidates: joint counts that were worth counting before each step but the first.
        maps: parts of each of them.
        asked: what each score was computed from, beside exact counts, and the shape of these.
        rows: that stood for the model before each of these steps.
        questions: whose correlations workers were asked for.
    """

    made: MarginalsProgram
    noise: SameAnswers
    chooser: SameChoices
    candidates: list[list[JointCount]] = field(default_factory=list)
    maps: list[list[Maps]] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    rows: list[NDArray[np.int32]] = field(default_factory=list)
    questions: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def kinds(self) -> set[int]:
        """Parts of all candidates; 0: bins."""
        return {one.parts for step in self.candidates for one in step}

    def decided(self) -> dict[str, Any]:
        """Return all that must not depend on exact counts, by what it is, first things first."""
        believed, kept = self.made._belief, self.made.tensors()
        known = believed.bins
        return {
            "bins": [(one.bins.tolist(), one.masses.tolist()) for one in known.shapes],
            "the total": known.total,
            "the questions": self.questions,
            "the candidates": self.candidates,
            "parts": [[[own.tolist() for own in maps] for maps in step] for step in self.maps],
            "what is scored": self.asked,
            "choices": [(len(scores), scale, tag) for scores, scale, tag in self.chooser.asked],
            "releases": [(len(one), spread, tag) for one, spread, tag in self.noise.asked],
            "the model's rows": [one.tobytes() for one in (*self.rows, believed._weights)],
            "what is kept": {name: (str(one.dtype), one.tolist()) for name, one in kept.items()},
        }


@cache
def wide_plan(relation: str) -> MarginalsPlan:
    """Return a plan with so much noise that parts are worth counting; nobody calibrated it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "calibrated", lambda releases, *_: releases(_FACTOR))
        return plan_of(WIDE, relation=relation, tables=_TABLES, correlations_share=0.1)


def whole_run(
    rows: Transitions | None,
    relation: str = "replace_with_null",
    *,
    as_released: bool = False,
    **settings: Any,
) -> WholeRun:
    """Run all steps; models are chains of conditionals.

    Args:
        rows: that are counted.
        relation: of neighbouring datasets.
        as_released: coarse parts are left out beside clear ones, and ways of cleaning tried, as
            in the product; else parts of all kinds are candidates, and there is one way.
        settings: of the workers; see `group`.
    """
    planned, chooser, noise = wide_plan(relation), SameChoices(), SameAnswers()
    made = program_of(WIDE, planned, chooser, **SETTINGS)
    run, workers, right = (
        WholeRun(made, noise, chooser),
        group(rows, WIDE, **settings),
        program.score,
    )

    def noted(counts: NDArray[np.int64], expected: NDArray[np.int64], **about: Any) -> int:
        run.asked.append((counts.shape, expected.tobytes(), about))
        return right(counts, expected, **about)

    correlations = CountWorker.correlations

    def answered(self: CountWorker, bins: Any, questions: Any) -> Any:
        run.questions.extend((one.place, one.answers.tolist()) for one in questions)
        return correlations(self, bins, questions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belief, "estimated", chained)
        patch.setattr(CountWorker, "correlations", answered)
        if not as_released:
            patch.setattr(candidates, "_CLEAR", 1000.0)
            patch.setattr(cleaning, "_TRIALS", 0)
        patch.setattr(program, "score", noted)
        for index in range(len(planned.releases)):
            made.prepare(index)
            if index:
                run.candidates.append(made._belief.worth_counting())
                run.maps.append([made._belief.bins.maps(one) for one in run.candidates[-1]])
                run.rows.append(made._belief._rows)
            made.step(index, workers, noise, index)
    return run
