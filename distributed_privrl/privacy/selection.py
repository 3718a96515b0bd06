"""Choices of the best of several candidates by the exponential mechanism, calibrated to a cost.

Scale and event come from the same frozen object, so the two cannot disagree.

Reference: McSherry and Talwar 2007 (exponential mechanism).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.choosing import LARGEST_SCORE, Chooser, rounded_up
from distributed_privrl.privacy.events import BoundedRangeEvent


@dataclass(frozen=True, kw_only=True)
class ExponentialSelection:
    """Choices among candidates with integer scores of bounded sensitivity.

    Args:
        span: width of the interval in which the changes of all candidates' scores lie, from a
            dataset to a neighbouring one (W). Where a score may move by D up or down it is 2 D.
        epsilon: range of the privacy loss of one choice.
        count: choices that `event` states; `choose` makes one.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``span``. Sensitivity: all scores change by
        numbers of an interval of width ``span``, so that the log-ratio of any two candidates'
        probabilities changes by span / `scale` at most. Event: ``bounded_range`` with ``epsilon``,
        which is span / `scale` or more.
    """

    span: int
    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        for name in ("span", "epsilon", "count"):
            check_positive(name, getattr(self, name))
        if self.span != int(self.span):
            raise ConfigError(f"span must be an integer, got {self.span!r}")

    @property
    def scale(self) -> float:
        """Scale of a choice, in units of the scores: span / epsilon, rounded up."""
        return rounded_up(Fraction(self.span) / Fraction(self.epsilon))

    @property
    def event(self) -> BoundedRangeEvent:
        """What ``count`` choices are charged as."""
        return BoundedRangeEvent(epsilon=self.epsilon, count=self.count)

    def choose(self, scores: Sequence[int], chooser: Chooser, *, tag: int = 0) -> int:
        """Return the position of the candidate that was drawn.

        Args:
            scores: ``(K,)``, the sensitive integers; the larger, the likelier. Cut to +-2^62, which
                moves no two datasets' scores further apart.
            chooser: draws.
            tag: what the draw is for; matters to choosers for tests alone.

        Raises:
            ConfigError: there is no candidate.
        """
        if not scores:
            raise ConfigError("scores must have one integer a candidate, got none")
        cut = [max(-LARGEST_SCORE, min(score, LARGEST_SCORE)) for score in scores]
        return chooser.choose_exponential(cut, scale=self.scale, tag=tag)
