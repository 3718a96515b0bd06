"""How often a private selection repeats its base run: the law of the number, its draw, its event.

Reference: Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy" (2022),
definitions 1 and theorem 6; Liu and Talwar, "Private selection from private candidates" (2019).
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from itertools import count

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import Event, RepeatAndSelectEvent

_DIGITS = 80
_BITS = 192
"""Of a uniform draw; figures are exact to some 260 bits."""
_BISECTIONS = 300
_LARGEST_MEAN = 10_000


@dataclass(frozen=True)
class TrialCount:
    """The law of the number of trials K.

    Args:
        mean: of K, above 1.
        shape: of a truncated negative binomial law on 1, 2, ... (1: geometric, 0: logarithmic);
            None: a Poisson law, which may give no trial at all.

    Raises:
        ConfigError: a value is out of range.

    Privacy: K is drawn by the operating system's generator, before anything is computed, and is
    known to nobody; see `event`.
    """

    mean: float
    shape: float | None = 1.0

    def __post_init__(self) -> None:
        if not 1 < self.mean <= _LARGEST_MEAN:
            raise ConfigError(f"mean must be above 1 and at most {_LARGEST_MEAN}, got {self.mean}")
        if self.shape is not None and not 0 <= self.shape <= 100:
            raise ConfigError(f"shape must be from 0 to 100, got {self.shape}")

    def event(self, events: Sequence[Event]) -> RepeatAndSelectEvent:
        """Return what the best of K independent runs costs, each of them charged ``events``.

        Args:
            events: of the worst run that there may be.

        Privacy: of a unit, under the relation of ``events``: K is independent of the data, runs
            are independent draws of one law, and the best one alone is shown, by a score that is
            computed from what it released.
        """
        return RepeatAndSelectEvent(
            distribution="poisson" if self.shape is None else "negative_binomial",
            shape=self.shape,
            mean=self.mean,
            events=tuple(events),
        )

    def draw(self, bits: Callable[[int], int] = secrets.randbits) -> int:
        """Return a number of trials, drawn by inversion.

        Args:
            bits: gives as many random bits as an integer; tests alone have another one.
        """
        with localcontext() as context:
            context.prec = _DIGITS
            chosen = (Decimal(bits(_BITS)) + Decimal("0.5")) / Decimal(2**_BITS)
            total = Decimal(0)
            for number, probability in self._probabilities():
                total += probability
                if chosen < total or probability == 0:
                    return number
        raise AssertionError("unreachable")

    def probabilities(self, largest: int) -> list[float]:
        """Return the probability of each number from 0 to ``largest``."""
        with localcontext() as context:
            context.prec = _DIGITS
            found = [0.0] * (largest + 1)
            for number, probability in self._probabilities():
                if number > largest:
                    break
                found[number] = float(probability)
        return found

    def _probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """Yield each number with its probability, at the precision of the context."""
        if self.shape is None:
            probability = (-Decimal(self.mean)).exp()
            for number in count():
                yield number, probability
                probability *= Decimal(self.mean) / (number + 1)
        shape, left = Decimal(self.shape or 0.0), 1 - self._gamma
        # Definition 1: P(K = k) is proportional to (1 - gamma)^k prod_l (l + shape) / (l + 1).
        if shape == 0:
            term = left / -self._gamma.ln()
        else:
            term = left * shape / (self._gamma**-shape - 1)
        for number in count(1):
            yield number, term
            term *= left * (number + shape) / (number + 1)

    @cached_property
    def _gamma(self) -> Decimal:
        """The law's parameter, at which the mean is ``mean`` or less by what bisection leaves."""
        with localcontext() as context:
            context.prec = _DIGITS
            low, high = Decimal(10) ** -12, Decimal(1)
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                if middle in (low, high):
                    break
                if middle == 1 or self._mean_at(middle) <= Decimal(self.mean):
                    high = middle
                else:
                    low = middle
            return high

    def _mean_at(self, gamma: Decimal) -> Decimal:
        shape = Decimal(self.shape or 0.0)
        if shape == 0:
            return (1 / gamma - 1) / -gamma.ln()
        return shape * (1 - gamma) / (gamma * (1 - gamma**shape))
