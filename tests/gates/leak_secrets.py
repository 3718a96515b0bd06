"""What must not be found in anything that may leave a run, and how it would be written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.gates.fragments import Fragments

DECIMALS = 5
LARGE = 10**6
"""A whole number beyond this one is met by chance nowhere."""
ROUND = 256
"""Multiples of it are met by chance in the tables of file formats."""
COMMON = 16
"""A number is in two pairs, as an observation and as a next one: more often, many rows hold it."""


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What must not be found.

    Args:
        rows: tables of sensitive rows ``(N, D)``: raw, and as they are encoded.
        public: tables of public rows, coded in the same ways.
        keys: of noise and coins.
        figures: of sensitive trajectories as wholes, such as their mean return.
        positions: of the units that took part, one array a worker and round.
        sums: the workers' partial sums.
        counts: exact ones, of workers and of all of them together.
        scores: that a choice was drawn by.
        planted: numbers of sensitive rows that nobody would meet by chance, by what they are.
        learned: numbers that came of exact sums or rows without noise, arrays of any shape.
        unit: multiples of it, in decimals, are no exact counts: whole units by default.
        weight: what one unit is counted as; counts are looked for in units, too.
        width: so many counts beside one another are looked for: where most are below a hundred,
            four are met by chance.
    """

    rows: tuple[NDArray[np.float32], ...]
    public: tuple[NDArray[np.float32], ...]
    keys: list[bytes] = field(default_factory=list)
    figures: tuple[float, ...] = ()
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    sums: list[NDArray[Any]] = field(default_factory=list)
    counts: list[NDArray[np.int64]] = field(default_factory=list)
    scores: list[NDArray[np.int64]] = field(default_factory=list)
    planted: Mapping[str, float] = field(default_factory=dict)
    learned: list[NDArray[Any]] = field(default_factory=list)
    unit: int = UNIT_WEIGHT
    weight: int = UNIT_WEIGHT
    width: int = 4

    @cached_property
    def pairs(self) -> NDArray[np.uint64]:
        """Return the bytes of neighbouring numbers that tell of a sensitive row alone."""
        return _rare(
            np.concatenate([neighbours(table) for table in self.rows]),
            np.concatenate([neighbours(table) for table in self.public]),
        )

    @cached_property
    def decimal_pairs(self) -> NDArray[np.uint64]:
        """Return neighbouring numbers, rounded to `DECIMALS`, that tell of a row alone."""
        return _rare(
            np.concatenate([decimal_pairs_of(table[:, :-1], table[:, 1:]) for table in self.rows]),
            np.concatenate(
                [decimal_pairs_of(table[:, :-1], table[:, 1:]) for table in self.public]
            ),
        )

    @cached_property
    def statistics(self) -> NDArray[np.float64]:
        """Return extremes, means and deviations of sensitive columns that public ones lack."""
        sensitive, public = (
            np.unique(np.concatenate([_statistics(table) for table in tables]))
            for tables in (self.rows, self.public)
        )
        known = np.isclose(sensitive[:, None], public, rtol=1e-4, atol=1e-4).any(axis=1)
        round_numbers = np.isclose(sensitive * 64, np.rint(sensitive * 64), atol=1e-4)
        return sensitive[~known & ~round_numbers]

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        """Return the 8 bytes of every pair, and of every statistic in float64, sorted."""
        return np.union1d(self.pairs, self.statistics.view(np.uint64))

    @cached_property
    def learned_words(self) -> NDArray[np.uint64]:
        """Return the 8 bytes of learned numbers: alone in float64, two together in float32."""
        flat = [one.reshape(-1) for one in self.learned]
        telling = [(numbers, _met_once(numbers)) for numbers in flat if len(numbers) > 1]
        words = [np.empty(0, np.uint64)]
        for numbers, known in telling:
            both = known[:-1] & known[1:]
            words.append(neighbours(np.float32(numbers)[None])[both])
            if numbers.dtype == np.float64:
                words.append(numbers[known].view(np.uint64))
        public = np.concatenate([neighbours(table) for table in self.public])
        return np.setdiff1d(np.concatenate(words), public)

    @cached_property
    def learned_pairs(self) -> NDArray[np.uint64]:
        """Return neighbouring learned numbers, rounded to `DECIMALS`."""
        pairs = [np.empty(0, np.uint64)]
        for numbers in (one.reshape(-1) for one in self.learned):
            known = _met_once(np.round(numbers, DECIMALS))
            both = known[:-1] & known[1:] & (np.abs(numbers[:-1]) < LARGE)
            both &= np.abs(numbers[1:]) < LARGE
            pairs.append(decimal_pairs_of(numbers[:-1][both], numbers[1:][both]))
        public = [decimal_pairs_of(table[:, :-1], table[:, 1:]) for table in self.public]
        return np.setdiff1d(np.concatenate(pairs), np.concatenate(public))

    def fragments(self) -> Iterator[tuple[str, bytes]]:
        """Yield the bytes of keys, positions and partial sums, as numbers and as text."""
        for key in self.keys:
            number = int.from_bytes(key, "big")
            for text in (key, key.hex().encode(), str(number).encode()):
                yield "a key", text
        for positions in self.positions:
            first = _telling(positions)
            if first is not None:
                yield "positions", first.astype(np.int64).tobytes()
                yield "positions", first.astype(np.int32).tobytes()
                for comma in (", ", ",", " "):
                    yield "positions", comma.join(map(str, first.tolist())).encode()
        for total in self.sums:
            if not total.any():  # of a round without anybody: nothing, which every file holds
                continue
            norm = float(np.linalg.norm(total.astype(np.float64)))
            yield "a partial sum", total[np.flatnonzero(total)][:4].tobytes()
            yield "a partial sum's norm", repr(norm)[:10].encode()
            yield "a partial sum's norm", np.float64(norm).tobytes()
        yield from self._exact_numbers()

    @cached_property
    def looked_for(self) -> Fragments:
        """Return `fragments`, to be looked for in one content after the other."""
        return Fragments(self.fragments())

    def _exact_numbers(self) -> Iterator[tuple[str, bytes]]:
        for counts in self.counts:
            yield from self._integers("exact counts", counts.reshape(-1))
        for scores in self.scores:
            yield from self._integers("scores", scores)
        for what, number in self.planted.items():
            if number % 1:
                for order in "<>":
                    yield what, np.array(number, f"{order}f8").tobytes()
            elif number > LARGE:
                whole = int(number)
                yield what, whole.to_bytes((whole.bit_length() + 7) // 8, "little")

    def _integers(self, what: str, numbers: NDArray[np.int64]) -> Iterator[tuple[str, bytes]]:
        """Yield `width` neighbouring integers that tell something, first, densest and last."""
        width = min(self.width, len(numbers))
        if width < 3:
            return
        windows = np.lib.stride_tricks.sliding_window_view(numbers, width)
        odd = np.abs(windows) % ROUND > 0
        telling = np.flatnonzero(odd.sum(axis=1) >= self.width // 2)
        if not len(telling):
            return
        densest = telling[np.argmax(odd.sum(axis=1)[telling])]
        for place in {int(telling[0]), int(densest), int(telling[-1])}:
            some = windows[place]
            yield what, some.tobytes()
            for dtype in (np.float64, np.float32):
                yield what, some.astype(dtype).tobytes()
                yield what, (some / self.weight).astype(dtype).tobytes()
            for comma in (", ", ",", " "):
                yield what, comma.join(map(str, some.tolist())).encode()

    @cached_property
    def tokens(self) -> dict[str, str]:
        """Return numbers as they would be written, with what they are."""
        known = {written(number): what for what, number in self.planted.items()}
        for what, arrays in (("an exact count", self.counts), ("a score", self.scores)):
            for one in arrays:
                numbers = [*one.reshape(-1).tolist(), int(one.sum())]
                large = [abs(number) for number in numbers if abs(number) > LARGE]
                known |= {str(number): what for number in large if number % self.unit}
        for one in self.counts:  # in units
            total = int(one.sum()) / self.weight
            if total % 1 and round(total, 3) != round(total, DECIMALS):  # else any figure may be it
                known[written(total)] = "an exact number of units"
        return known

    @cached_property
    def singles(self) -> NDArray[np.float32]:
        """Return the planted numbers that are no whole ones, as rows hold them, sorted."""
        return np.unique(np.array([one for one in self.planted.values() if one % 1], np.float32))


def written(number: float) -> str:
    """Return a number as the scan compares it: a whole one, or rounded to `DECIMALS`."""
    return str(int(number)) if number == int(number) else f"{number:.{DECIMALS}f}"


def _telling(positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the last four to six neighbouring positions with a gap.

    1, 2, 3, 4 is what any counter holds, and 0, 1, 3, 4 what offsets of short things do.
    """
    width = min(6, len(positions))
    if width < 4:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(positions, width)
    return next((some for some in windows[::-1] if some[-1] - some[0] != width - 1), None)


def neighbours(table: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return the 8 bytes of each two numbers that stand beside each other in a row."""
    first, second = (
        np.ascontiguousarray(part, np.float32).view(np.uint32).astype(np.uint64)
        for part in (table[:, :-1], table[:, 1:])
    )
    return ((second << np.uint64(32)) | first).ravel()


def decimal_pairs_of(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.uint64]:
    """Return two numbers each, rounded to `DECIMALS`, as one."""
    scaled = [
        np.rint(np.float64(part) * 10**DECIMALS).astype(np.int64).astype(np.uint64)
        for part in (first, second)
    ]
    return ((scaled[1] << np.uint64(32)) ^ (scaled[0] & np.uint64(2**32 - 1))).ravel()


def _rare(found: NDArray[np.uint64], public: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # A row's next observation is the following row's observation: twice is still rare.
    values, counts = np.unique(found, return_counts=True)
    rare = np.setdiff1d(values[counts <= 2], public)
    # A number that many rows hold (a bound, a level) tells of none, and leaves of its pair 24 bits
    # of the other one, which one run of PrivORL-j in ten meets by chance.
    numbers, often = np.unique(np.concatenate(_halves(found)), return_counts=True)
    common = [np.isin(half, numbers[often > COMMON]) for half in _halves(rare)]
    return rare[~(common[0] | common[1])]


def _met_once(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which numbers are met once among these, and are no round ones: (N,)."""
    values, counts = np.unique(numbers, return_counts=True)
    return np.asarray(np.isin(numbers, values[counts == 1]) & (numbers * 64 % 1 != 0))


def _halves(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return pairs & np.uint64(2**32 - 1), pairs >> np.uint64(32)


def _statistics(table: NDArray[np.float32]) -> NDArray[np.float64]:
    values = table.astype(np.float64)
    parts = (values.min(0), values.max(0), values.mean(0), values.std(0))
    return np.concatenate(parts)
