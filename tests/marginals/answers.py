"""Runs whose noisy answers are the same: whatever differs between two was told by exact counts."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.experiments.run import RunResult
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease, IntegerGaussianRelease
from distributed_privrl.privacy.selection import ExponentialSelection
from tests.worlds.world import World

_CHANGING = re.compile(
    rb"run-[0-9a-f]{16}|\b[0-9a-f]{32}\b|\b[0-9a-f]{64}\b|\d{4}-\d\d-\d\dT[\d:.+Z]*"
)
"""Ids, hashes and the time of a certificate: of each run anew, whatever its rows are."""


@dataclass
class Answers:
    """Answers that are the same in each run, and what they were asked for.

    Args:
        known: answers by their place in a run.
        asked: kind, what is charged for, and exact integers of each, in this run.
        seed: of the first run's noise, whose choices then take the best; None: all are drawn.
    """

    known: dict[int, Any] = field(default_factory=dict)
    asked: list[tuple[str, float, NDArray[np.int64]]] = field(default_factory=list)
    seed: int | None = None

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Have releases and choices answer so."""
        for owner, name, kind, charged in (
            (IntegerGaussianRelease, "release", "L2", "sensitivity"),
            (DiscreteLaplaceRelease, "release", "L1", "sensitivity"),
            (ExponentialSelection, "choose", "range", "span"),
        ):
            patch.setattr(owner, name, self._answer(getattr(owner, name), kind, charged))

    def _answer(self, right: Callable[..., Any], kind: str, charged: str) -> Callable[..., Any]:
        def answer(release: Any, exact: Any, *given: Any, **about: Any) -> Any:
            place = len(self.asked)
            self.asked.append((kind, getattr(release, charged), np.array(exact, np.int64)))
            if place not in self.known and self.seed is None:
                self.known[place] = right(release, exact, *given, **about)
            elif place not in self.known:
                self.known[place] = self._seeded(release, self.asked[-1][2], kind, place)
            return self.known[place]

        return answer

    def _seeded(self, release: Any, exact: NDArray[np.int64], kind: str, place: int) -> Any:
        if kind == "range":
            return int(np.argmax(exact))
        source = np.random.default_rng([self.seed or 0, place])
        noise = source.normal(0, release.standard_deviation, exact.shape)
        return exact + np.rint(noise).astype(np.int64)


def moved(kind: str, one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return how far exact integers of two datasets are apart, as their event measures it."""
    apart = (one - other).astype(np.float64).ravel()
    if kind == "range":
        return float(np.ptp(apart))
    return float(np.abs(apart).sum() if kind == "L1" else np.linalg.norm(apart))


def what_may_leave(place: World, result: RunResult) -> dict[str, bytes]:
    """Return the files of a run and of its dataset without those in ``private/``, by their path."""
    found = {}
    for top in (result.directory.path, place.store.root / str(result.released)):
        for path in (one for one in top.rglob("*") if one.is_file()):
            name = path.relative_to(place.folder)
            if "private" not in name.parts[1:-1]:
                found[str(name)] = _CHANGING.sub(b"", path.read_bytes())
    return found
