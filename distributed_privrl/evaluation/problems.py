"""What synthetic rows are of no use for, by thresholds: the red lines of a private report."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from distributed_privrl.evaluation.exact_rules.judging import rule_problems
from distributed_privrl.evaluation.followers import Problem, in_lines
from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.evaluation.means import mean_problems
from distributed_privrl.evaluation.rare_events import event_problems, rate_problems
from distributed_privrl.evaluation.relations import is_lost
from distributed_privrl.evaluation.usefulness import Usefulness

FAR_PROFILE = 0.2
"""Means along trajectories are lost if they are farther off by more than this, in deviations."""
FAR_COLUMN = 0.1
"""A column is lost if it is farther off than any other real sample by more than this."""
LEAST_TAUGHT = 0.1
"""What follows counts if every real sample explains this share of it."""
TAUGHT_KEPT = 0.5
"""It is lost if synthetic rows explain less than this part of what any real sample does."""
TELLING_AREA = 0.75
FAR_AREA = 0.2
"""Rows can be told apart above that area, by more than this over another real sample."""


_Says = Callable[[Judged], str]


def problems_of(found: Usefulness) -> list[str]:
    """Return what rows are not useful for, with the reason, by the thresholds above.

    What fails for a column, and again for those that follow from it, is told once. Checks take
    turns: first the worst of each, then the second of each, and so on.

    Args:
        found: about the rows.
    """
    given, state, seen = found.terms.given, found.terms.state, found.terms.seen
    checks = [
        _failed("column", found.columns, lambda one: one.excess > FAR_COLUMN, _of_column),
        mean_problems(found.means),
        _failed("pair", found.pairs, is_lost, partial(_of_relation, "{} go together")),
        _failed("time", found.over_time, is_lost, partial(_of_relation, "{} over time")),
        _failed("profile", found.profiles, lambda one: one.excess > FAR_PROFILE, _of_profile),
        _failed("taught", found.taught, _is_forgotten, partial(_of_lesson, given)),
        _failed("chosen", found.chosen, _is_forgotten, partial(_of_choice, state)),
        rule_problems(found.rules),
        event_problems(found.events),
        rate_problems(found.rates),
        _failed("area", found.areas, _is_telling, partial(_of_area, seen))[:1],
    ]
    rounds = itertools.zip_longest(*(in_lines(one, found.follows) for one in checks))
    return [line for lines in rounds for line in lines if line is not None]


def _failed(
    kind: str, figures: Sequence[Judged], is_bad: Callable[[Judged], bool], says: _Says
) -> list[Problem]:
    return [
        Problem(text=says(one), kind=kind, columns=one.columns) for one in figures if is_bad(one)
    ]


def _of_column(one: Judged) -> str:
    return (
        f"how {one.name} is distributed: distance {one.value:.2f}, another real sample has"
        f" {one.reference:.2f}"
    )


def _of_relation(how: str, one: Judged) -> str:
    return (
        f"how {how.format(one.name)}: {one.real:.2f} in real rows, {one.synthetic:.2f} in"
        " synthetic ones"
    )


def _of_profile(one: Judged) -> str:
    return (
        f"how the mean of {one.name} changes along trajectories: off by {one.value:.2f} of its"
        f" deviation, another real sample by {one.reference:.2f}"
    )


def _of_lesson(given: str, one: Judged) -> str:
    return (
        f"learning {one.name} from {given}: they explain {one.value:.0%} of it, real rows"
        f" {one.reference:.0%}"
    )


def _of_choice(state: str, one: Judged) -> str:
    return (
        f"learning how {one.name} is chosen from {state}: {one.value:.0%} of it is explained, by"
        f" real rows {one.reference:.0%}"
    )


def _of_area(seen: Callable[[str], str], one: Judged) -> str:
    return (
        f"standing in for real rows: a classifier that sees {seen(one.name)} tells them apart"
        f" (area {one.value:.2f}, another real sample has {one.reference:.2f})"
    )


def _is_forgotten(share: Judged) -> bool:
    """Say whether synthetic rows explain too little of what every real sample explains."""
    return share.lowest >= LEAST_TAUGHT and share.value < TAUGHT_KEPT * share.lowest


def _is_telling(area: Judged) -> bool:
    """Say whether a classifier tells synthetic rows from real ones."""
    return area.value > TELLING_AREA and area.value - area.reference > FAR_AREA
