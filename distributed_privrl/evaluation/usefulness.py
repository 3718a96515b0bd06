"""What a synthetic table is good for: each figure beside that of another real sample.

The units of the real rows are split into halves. One half judges, and the synthetic rows and the
other half are judged: what the other half scores is what another real sample of that size would.
None of this is a private release: it belongs into ``private/``.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from distributed_privrl.core.random import Streams
from distributed_privrl.data.named_rows import Rows, is_category
from distributed_privrl.evaluation.along import (
    TIME,
    beside_others,
    clocks,
    lengths,
    profile_gap,
    returns,
    timed,
)
from distributed_privrl.evaluation.conditional import explained, targets_of
from distributed_privrl.evaluation.exact_rules.judging import (
    JudgedRule,
    judged_rules,
)
from distributed_privrl.evaluation.followers import followers, kept_ones
from distributed_privrl.evaluation.judged import Judged, Named, judged, worst
from distributed_privrl.evaluation.means import mean_gaps, mean_of
from distributed_privrl.evaluation.rare_events import rare_events, rates_among_rare, vanished
from distributed_privrl.evaluation.table_measures import (
    association,
    associations,
    marginal,
    spread_over,
)
from distributed_privrl.evaluation.terms import Terms, terms_of
from distributed_privrl.evaluation.two_sample import two_sample_areas

JUDGED_VALUES, FEWEST_JUDGED, MOST_JUDGED = 1_500_000, 10_000, 100_000
"""Values, fewest and most rows of each half of the real units, and of the synthetic rows, about."""
SPLITS = 3
"""Times that the units are split; a figure is the mean over them."""
FEWEST_UNITS = 8
PAIRED_VALUES, FEWEST_PAIRED = 10_000_000, 5000
"""Rows times pairs of columns, and fewest rows, of each half and of the synthetic rows."""
AREA_ROWS = 6000


@dataclass(frozen=True, kw_only=True)
class Usefulness:
    """What synthetic rows are worth, by kind of measure; the worst first.

    Args:
        units: of the real rows that took part.
        rows: real ones that took part.
        made: synthetic rows that took part.
        paired: rows of each half, and of the synthetic ones, that pairs rest on, at most.
        columns: distances, 0 to 1: Kolmogorov-Smirnov of numbers, total variation of categories,
            and of steps and returns of trajectories.
        means: differences of the means of numbers, in their mean absolute deviations.
        pairs: differences of the associations of two columns of a row, of the ranks of numbers;
            where both sides have trajectories, of a column and `TIME`, too.
        rules: that hold in the real rows, with the shares of rows that keep to them.
        over_time: differences of what a step has to do with the next one: associations of a column
            with itself, of numbers that grow also among rows of the same time, and shares of steps
            that keep its value; and of how the spread of a number changes with `TIME`.
        profiles: distances of a number's mean at each step, in its standard deviations.
        taught: shares of reward, next state and end that state and action explain; 1 is the best.
        chosen: shares of actions that the state explains.
        events: shares of rows, of rare values.
        rates: of the second value of columns of two, among the rows of each rare value.
        areas: under the curve of a classifier, by group of columns; 0.5: it cannot tell.
        constants: columns with one value in the real rows, which the others leave out, and the
            share of synthetic rows with another value.
        vanished: real rows of each category that no synthetic row has.
        associations: of the synthetic less those of the real rows, by the names of two columns.
        terms: words for the parts of a row.
        follows: columns that another one tells in every real row, and that other one; and those
            of the next step that are what the row's own ones are, as what a person keeps.
    """

    units: int
    rows: int
    made: int
    paired: int
    columns: tuple[Judged, ...]
    pairs: tuple[Judged, ...]
    rules: tuple[JudgedRule, ...]
    over_time: tuple[Judged, ...]
    taught: tuple[Judged, ...]
    events: tuple[Judged, ...]
    areas: tuple[Judged, ...]
    constants: Mapping[str, float]
    means: tuple[Judged, ...] = ()
    rates: tuple[Judged, ...] = ()
    vanished: Mapping[str, int] = field(default_factory=dict)
    profiles: tuple[Judged, ...] = ()
    associations: Mapping[tuple[str, str], float] = field(default_factory=dict)
    chosen: tuple[Judged, ...] = ()
    terms: Terms = field(default_factory=Terms)
    follows: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_pairs(self) -> tuple[Judged, ...]:
        """The pairs of columns that do not follow from another one."""
        return tuple(one for one in self.pairs if not set(one.columns) & set(self.follows))


def judged_rows(columns: int) -> int:
    """Return about how many rows of each half, and synthetic ones, are judged at most."""
    return min(MOST_JUDGED, max(FEWEST_JUDGED, JUDGED_VALUES // columns))


def usefulness(real: Rows, synthetic: Rows, streams: Streams) -> Usefulness | str:
    """Return what synthetic rows are worth beside real ones, or in words why it cannot be told.

    Args:
        real: rows of many units; of trajectories, all rows of each.
        synthetic: rows under the same names. What is measured of whole trajectories needs both
            sides to have some.
        streams: public randomness of splits, subsamples, trees.
    """
    units = len(np.unique(real.units))
    if units < FEWEST_UNITS or not len(synthetic):
        return (
            f"not applicable: {units} real units and {len(synthetic)} synthetic rows, at least"
            f" {FEWEST_UNITS} units and a row are needed"
        )
    if not (real.ends.all() or synthetic.ends.all()):
        real, synthetic = timed(real), timed(synthetic)
    rng = streams.numpy("splits")
    most = judged_rows(len(real.frame.columns))
    made, whole = synthetic.part(most, rng), real.part(2 * most, rng)
    splits = [whole.halves(rng) for _ in range(SPLITS)]
    constants = {name: whole.frame[name].nunique(dropna=False) <= 1 for name in whole.frame}
    varying = [name for name in whole.own if not constants[name]]
    related = [*varying, *([TIME] if TIME in whole.frame and TIME not in varying else [])]
    paired = max(FEWEST_PAIRED, PAIRED_VALUES // max(1, math.comb(len(related), 2)))
    pairs = _compared(partial(_related, names=related), splits, made, rng, rows=paired)
    judge, other = splits[0]
    distances = partial(_distances, names=varying)
    return Usefulness(
        units=len(np.unique(whole.units)),
        rows=len(whole),
        made=len(made),
        paired=paired,
        columns=worst(_apart(distances, splits, made)),
        means=worst(_means(whole, splits, made, varying)),
        pairs=worst(pairs),
        rules=judged_rules(
            judge,
            other,
            made,
            [*varying, *(name for name in whole.successor if not constants[name])],
            streams.numpy("rules"),
        ),
        over_time=worst(_compared(_over_time, splits, made)),
        profiles=worst(_apart(partial(_profiles, names=varying), splits, made)),
        taught=_taught(splits, made, rng),
        chosen=_chosen(splits, made, streams.numpy("chosen")),
        events=rare_events(whole, splits, made, varying),
        areas=_areas(judge, other, made, rng),
        constants={
            name: _share_of_others(whole.frame[name], made.frame[name])
            for name in whole.own
            if constants[name]
        },
        rates=rates_among_rare(whole, splits, made, varying),
        vanished=vanished(whole.frame, made.frame, varying),
        associations={
            columns: one.synthetic - one.real
            for columns, one in zip(itertools.combinations(related, 2), pairs, strict=True)
        },
        terms=terms_of(whole),
        follows=_follows(whole, varying),
    )


_Splits = list[tuple[Rows, Rows]]


def _apart(
    distances: Callable[[Rows, Rows], dict[Named, float]], splits: _Splits, made: Rows
) -> list[Judged]:
    """Return how far the synthetic rows, and the other half, are from the half that judges."""
    theirs = [distances(judge, made) for judge, _ in splits]
    own = [distances(judge, other) for judge, other in splits]
    return [
        judged(name, [one[name] for one in theirs], [one[name] for one in own])
        for name in theirs[0]
        if all(name in one for one in own)
    ]


def _compared(
    statistics: Callable[[Rows], dict[Named, float]],
    splits: _Splits,
    made: Rows,
    rng: np.random.Generator | None = None,
    *,
    rows: int | None = None,
) -> list[Judged]:
    """Return how far statistics of the synthetic rows and the other half are from the judge's."""

    def of(some: Rows) -> dict[Named, float]:
        return statistics(some if rows is None or rng is None else some.sample(rows, rng))

    synthetic = of(made)
    both = [(of(judge), of(other)) for judge, other in splits]
    names = [name for name in synthetic if all(name in one for pair in both for one in pair)]
    return [
        judged(
            name,
            [abs(synthetic[name] - judge[name]) for judge, _ in both],
            [abs(other[name] - judge[name]) for judge, other in both],
            real=float(np.mean([one[name] for pair in both for one in pair])),
            synthetic=synthetic[name],
        )
        for name in names
    ]


def _distances(real: Rows, other: Rows, *, names: list[str]) -> dict[Named, float]:
    found = {
        Named(name, (name,)): 1 - marginal(real.frame[name], other.frame[name]) for name in names
    }
    if not (real.ends.all() or other.ends.all()):
        for name, (one, two) in {
            "steps of a trajectory": (lengths(real), lengths(other)),
            **({"return of a trajectory": (returns(real), returns(other))} if real.reward else {}),
        }.items():
            found[Named(name, ())] = float(stats.ks_2samp(one, two, method="asymp").statistic)
    return found


def _means(whole: Rows, splits: _Splits, made: Rows, names: Sequence[str]) -> list[Judged]:
    """Return how far the means of numbers are from the real ones, with both."""

    def gaps(real: Rows, other: Rows) -> dict[Named, float]:
        found = mean_gaps(real.frame, other.frame, names)
        return {Named(name, (name,)): gap for name, gap in found.items()}

    return [
        replace(one, real=mean_of(whole.frame, one.name), synthetic=mean_of(made.frame, one.name))
        for one in _apart(gaps, splits, made)
    ]


def _profiles(real: Rows, other: Rows, *, names: list[str]) -> dict[Named, float]:
    """Return how far the means of numbers at each step are from the real ones, in deviations."""
    if TIME not in real.frame:
        return {}
    return {
        Named(name, (name,)): profile_gap(real.frame[[name, TIME]], other.frame[[name, TIME]])
        for name in names
        if name != TIME and not is_category(real.frame[name])
    }


def _related(rows: Rows, *, names: list[str]) -> dict[Named, float]:
    """Return the associations of pairs: numbers by their ranks, beside categories, too."""
    frame = rows.frame[names]
    numbers = {name: frame[name].rank() for name in names if not is_category(frame[name])}
    found = associations(frame.assign(**numbers))
    return {Named(" and ".join(both), both): value for both, value in found.items()}


def _over_time(rows: Rows) -> dict[Named, float]:
    """Return what a column has to do with itself a step later, and how its spread changes."""
    found = {}
    steps = {now: (rows.frame[now], rows.frame[after]) for now, after in _steps(rows)}
    follows = np.flatnonzero(~rows.ends[:-1])
    if len(follows):
        for name in (*rows.action, *rows.rewarded):
            column = rows.frame[name]
            steps[name] = (
                column.iloc[follows].reset_index(drop=True),
                column.iloc[follows + 1].reset_index(drop=True),
            )
    for name, (one, other) in steps.items():
        known = (one.notna() & other.notna()).to_numpy()
        if known.any() and one.nunique() > 1:
            relation = Named(f"{name} and the next step's go together", (name,))
            found[relation] = association(one, other)
            kept = one[known].to_numpy() == other[known].to_numpy()
            found[Named(f"often {name} stays", (name,))] = float(np.mean(kept))
    late = clocks(rows)
    grown = [(now, after) for now, after in _steps(rows) if now not in late]
    for now, after in grown:
        for clock in [] if is_category(rows.frame[now]) else late:
            both = beside_others(*(rows.frame[name] for name in (now, after, clock)))
            if both is not None:
                together = f"{now} and the next step's go together where {clock} is the same"
                found[Named(together, (now,))] = association(*both)
    if TIME in rows.frame:
        for name in rows.own:
            column = rows.frame[name]
            if name != TIME and not is_category(column) and column.nunique() > 1:
                widely = Named(f"widely {name} varies among trajectories", (name,))
                found[widely] = spread_over(column, rows.frame[TIME])
    return found


def _taught(splits: _Splits, made: Rows, rng: np.random.Generator) -> tuple[Judged, ...]:
    """Return the shares of what follows from state and action that each sample explains."""
    lessons = targets_of(made).values()
    found = [one for targets in lessons for one in _learned(splits, made, targets, rng)]
    return tuple(sorted(found, key=lambda one: one.value - one.reference))


def _chosen(splits: _Splits, made: Rows, rng: np.random.Generator) -> tuple[Judged, ...]:
    """Return the share of each action that each sample explains, given the state."""
    found = _learned(splits, made, made.action, rng, given=made.state)
    return tuple(sorted(found, key=lambda one: one.value - one.reference))


def _learned(
    splits: _Splits,
    made: Rows,
    targets: Sequence[str],
    rng: np.random.Generator,
    *,
    given: Sequence[str] | None = None,
) -> list[Judged]:
    """Return the share of each target that each sample explains; see `explained`."""
    theirs = [explained(made, judge, targets, rng, given=given) for judge, _ in splits]
    own = [explained(other, judge, targets, rng, given=given) for judge, other in splits]
    return [
        judged(Named(name, (name,)), [one[name] for one in theirs], [one[name] for one in own])
        for name in targets
        if all(name in one for one in (*theirs, *own))
    ]


def _areas(judge: Rows, other: Rows, made: Rows, rng: np.random.Generator) -> tuple[Judged, ...]:
    theirs, own = (two_sample_areas(judge, rows, rng, rows=AREA_ROWS) for rows in (made, other))
    return tuple(
        Judged(name=name, value=value, reference=own[name], lowest=own[name], highest=own[name])
        for name, value in theirs.items()
        if name in own
    )


def _follows(rows: Rows, varying: Sequence[str]) -> dict[str, str]:
    """Return the columns that follow from another own column, of a row and of its next step."""
    found = followers(rows.frame, varying)
    steps = {after: now for now, after in _steps(rows) if now in varying}
    kept = kept_ones(rows.frame, steps)
    return found | {after: found.get(now, now) for after, now in kept.items()}


def _steps(rows: Rows) -> list[tuple[str, str]]:
    """Return the columns of the state that the next step has, too, with those of the next step."""
    return list(zip(rows.state[: len(rows.successor)], rows.successor, strict=True))


def _share_of_others(real: pd.Series, synthetic: pd.Series) -> float:
    """Return the share of synthetic values that are not the real rows' only one."""
    if real.isna().all():
        return float(synthetic.notna().mean())
    return float((synthetic.astype(object) != real.iloc[0]).mean())
