"""Choices along a walk that are made, in all, as often as they should be."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_MOST_RAISED = 8.0
_SHRUNK = 5.0
"""Walks of a mean change that are thought to begin in each bin beside those that do."""


@dataclass(eq=False)
class Odds:
    """By which factor each bin of a column is more or less likely, whatever is known of a row.

    A factor lies between an eighth and eight, so that what a state tells of its action is kept.

    Args:
        counts: ``(K, A)`` by column of each class of units and bin; zeros, then what was drawn.
    """

    counts: dict[int, NDArray[np.float64]]
    factors: dict[int, NDArray[np.float64]] = field(init=False)

    def __post_init__(self) -> None:
        self.factors = {place: np.ones(one.shape[1]) for place, one in self.counts.items()}
        self._clear()

    def raised(self, place: int, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return shares ``(N, A)`` of a column's bins by these odds.

        Example:
            >>> odds = Odds({3: np.zeros((1, 2))})
            >>> odds.factors[3][:] = [3.0, 1.0]
            >>> odds.raised(3, np.array([[0.5, 0.5]])).tolist()
            [[0.75, 0.25]]
        """
        found = shares * self.factors[place]
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def count(self, place: int, units: NDArray[np.int64], drawn: NDArray[np.int32]) -> None:
        """Count what was drawn of a column ``(N,)``, for classes of units ``(N,)``."""
        np.add.at(self.counts[place], (units, drawn), 1)

    def correct(self, usual: dict[int, NDArray[np.float64]]) -> None:
        """Raise odds of what was drawn too seldom, and count anew.

        Args:
            usual: ``(K, A)`` by column: how bins should be divided in each class of units, which
                are as frequent as they were drawn.
        """
        for place, counts in self.counts.items():
            drawn = counts.sum(axis=0)
            wanted = counts.sum(axis=1) @ usual[place]
            ratio = (wanted + 1) / (drawn + 1)
            factors = self.factors[place] * ratio
            self.factors[place] = np.clip(factors, 1 / _MOST_RAISED, _MOST_RAISED)
        self._clear()

    def _clear(self) -> None:
        self.counts = {place: np.zeros(one.shape) for place, one in self.counts.items()}


@dataclass(eq=False)
class FirstStates:
    """By which factor each bin of a column is more or less likely at a trajectory's first step.

    Walks begin in states of any time where nothing was counted that tells first ones from later
    ones; ages would then begin too high and grow. But all steps together must have the columns as
    they were released. Which first states lead there is found as a blurred picture is sharpened:
    each bin's factor is multiplied by how much too seldom the states are that follow from it.

    Reference: Richardson 1972; Lucy 1974.

    Args:
        wanted: ``(B,)`` shares of bins among rows of all times, by column; empty: no column's
            beginning is unknown.
        kinds: ``(G,)`` shares of kinds of rows, such as those of a time: rows of walks weigh as
            much together as these.
    """

    wanted: dict[int, NDArray[np.float64]]
    kinds: NDArray[np.float64]
    factors: dict[int, NDArray[np.float64]] = field(init=False)
    _seen: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self.factors = {place: np.ones(len(one)) for place, one in self.wanted.items()}

    def chosen(self, rows: NDArray[np.int32], random: np.random.Generator) -> NDArray[np.int32]:
        """Return one of each row's candidates ``(N, K, V)``, by the factors of their bins."""
        weights = np.ones(rows.shape[:2])
        for place, factors in self.factors.items():
            weights *= factors[rows[:, :, place]]
        shares = weights.cumsum(axis=1)
        place_of = (shares <= random.random((len(rows), 1)) * shares[:, -1:]).sum(axis=1)
        found = rows[np.arange(len(rows)), np.minimum(place_of, rows.shape[1] - 1)]
        return np.asarray(found)

    def see(
        self, kinds: NDArray[np.int64], walks: NDArray[np.int64], rows: NDArray[np.int32]
    ) -> None:
        """Note a step of some walks: the kind ``(N,)``, the walk ``(N,)``, the row ``(N, V)``."""
        if self.wanted:
            self._seen.append((kinds, walks, rows[:, list(self.wanted)].copy()))

    def correct(self) -> None:
        """Change the factors by what was seen, and forget it.

        One column after the other, each with the walks as those before it have them: several that
        say the same would else correct the same miss several times, and drive it farther each time.
        """
        if not self._seen:
            return
        kinds, walks, rows = map(np.concatenate, zip(*self._seen, strict=True))
        drawn = np.bincount(kinds, minlength=len(self.kinds)) / len(kinds)
        weights = (self.kinds / np.maximum(drawn, 1e-12))[kinds]
        each = np.bincount(walks, weights=weights)
        first = rows[: len(self._seen[0][1])]  # of all walks, in their order
        raised = np.ones(len(first))
        for index, (place, wanted) in enumerate(self.wanted.items()):
            own = weights * raised[walks]
            found = np.bincount(rows[:, index], weights=own, minlength=len(wanted))
            ratio = (wanted + 1 / len(kinds)) / (
                found / max(float(own.sum()), 1e-300) + 1 / len(kinds)
            )
            lacking = np.bincount(walks, weights=weights * ratio[rows[:, index]])
            lacking = np.divide(lacking, each, out=np.ones(len(each)), where=each > 0)
            count = np.bincount(first[:, index], weights=raised, minlength=len(wanted))
            told = np.bincount(first[:, index], weights=raised * lacking, minlength=len(wanted))
            before = self.factors[place]
            factors = before * (told + _SHRUNK) / (count + _SHRUNK)
            self.factors[place] = np.clip(factors, 1 / _MOST_RAISED, _MOST_RAISED)
            raised *= (self.factors[place] / before)[first[:, index]]
            raised *= len(raised) / raised.sum()
        self._seen.clear()
