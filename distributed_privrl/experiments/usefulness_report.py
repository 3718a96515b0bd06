"""The sections of a private report on what a release is worth, by the names of its columns."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distributed_privrl.core.random import Streams
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.conditional import TAUGHT_ROWS
from distributed_privrl.evaluation.exact_rules.judging import FAR_RULE, RULE_ROWS, told_once
from distributed_privrl.evaluation.figures import PrivateFigure
from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.evaluation.means import FAR_MEAN
from distributed_privrl.evaluation.problems import (
    FAR_AREA,
    FAR_COLUMN,
    LEAST_TAUGHT,
    TAUGHT_KEPT,
    TELLING_AREA,
)
from distributed_privrl.evaluation.rare_events import EVENT_FACTOR, FAR_RATE, RARE_EVENT, SELDOM
from distributed_privrl.evaluation.relations import (
    CLEARLY,
    FAR_PAIR,
    HALF,
    LEAST_RELATION,
)
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.usefulness import (
    AREA_ROWS,
    SPLITS,
    Usefulness,
    judged_rows,
    usefulness,
)
from distributed_privrl.experiments.samples import layout_of, sampled_units
from distributed_privrl.experiments.usefulness_overview import SHOWN, TITLE, overview


def usefulness_sections(store: DatasetStore, *, real: str, synthetic: str) -> list[Section]:
    """Return what a dataset is worth beside the real rows; for private reports alone.

    Args:
        store: datasets.
        real: id of the real rows.
        synthetic: id of the synthetic ones.
    """
    info, layout = store.info(real), layout_of(store, real)
    most = judged_rows(layout.width if info.has_successors else layout.blocks["reward"].stop)
    found = usefulness(
        sampled_units(store, real, 2 * most),
        sampled_units(store, synthetic, most),
        Streams(0).child("usefulness"),
    )
    if isinstance(found, str):
        return [Section(title=TITLE, metrics=[Metric(name=TITLE, value=found)])]
    rows = info.total_steps.open(Purpose.PRIVATE)
    sections = [
        overview(found, rows),
        _columns(found),
        *([_means(found)] if found.means else []),
        _pairs(found),
        _rules(found),
        _taught(found),
    ]
    if found.chosen:
        sections.append(_chosen(found))
    if found.over_time:
        sections.append(_over_time(found))
    if found.profiles:
        sections.append(_profiles(found))
    return [*sections, _events(found), _areas(found), _judging(found)]


def _judging(found: Usefulness) -> Section:
    """Return what the checks are, exactly."""
    return Section(
        title="How this was judged",
        explanation="Real units are split into halves. One half judges the synthetic rows, and the"
        " other half: what that scores stands beside each figure, and is what another real sample"
        f" of that size would score. Figures are means over {SPLITS} splits."
        f" A column is lost if its distance is larger by {FAR_COLUMN:g} than any other real"
        f" sample's, a mean if it is off by {FAR_MEAN:g} mean absolute deviations more, a relation"
        f" if its strength is off by {FAR_PAIR:g} more, or if one of"
        f" {LEAST_RELATION:g} or more has less than {HALF:g} of it left and is off {CLEARLY:g}"
        " times as much as any other real sample's (if it is off by less, but by more than any"
        " other real sample's, it counts as neither kept nor lost), a rule if the share of"
        f" rows that keep to it is smaller by {FAR_RULE:g}, what follows from"
        f" {found.terms.given}{_or_an_action(found)},"
        f" if every real sample explains {LEAST_TAUGHT:.0%} of it or more, and"
        f" synthetic rows less than {TAUGHT_KEPT:g} of what any does, a rare event if it is"
        f" {EVENT_FACTOR:g} times more often or more seldom, a rate among rare rows if it is off by"
        f" {FAR_RATE:g} more than any real sample's. Rows do not stand in for real ones if"
        f" a classifier's area is above {TELLING_AREA:g}, and {FAR_AREA:g} more than another real"
        " sample's.",
    )


def _metrics(figures: Sequence[Judged]) -> list[Metric]:
    return [
        Metric(
            name=one.name,
            value=one.value,
            reference=one.reference,
            explanation=""
            if math.isnan(one.real)
            else f"{one.real:.3g} in the real rows, {one.synthetic:.3g} in the synthetic ones",
        )
        for one in figures[:SHOWN]
    ]


def _by(found: Usefulness, most: int | None = None) -> str:
    """Say how many rows and units a table rests on, of each half and of the synthetic rows."""
    if most is None or most >= max(found.rows, found.made):
        return (
            f" Judged by all of the {found.rows:,} real rows of {found.units:,} units, a half of"
            f" the units at a time, and {found.made:,} synthetic rows."
        )
    return (
        f" Judged by up to {most:,} random rows of each half of the {found.units:,} real units, and"
        " as many synthetic rows."
    )


def _columns(found: Usefulness) -> Section:
    return Section(
        title="The worst columns",
        explanation="Distance of a column's distribution from that of the real rows, from 0 to 1:"
        " Kolmogorov-Smirnov of numbers, total variation of categories." + _by(found),
        metrics=_metrics(found.columns),
    )


def _means(found: Usefulness) -> Section:
    return Section(
        title="Means",
        explanation="Difference of a number's mean from that of the real rows, in mean absolute"
        " deviations of the real ones from their median. A few rows far out move it, and hardly"
        " the distribution above." + _by(found),
        metrics=_metrics(found.means),
    )


def _pairs(found: Usefulness) -> Section:
    names = list(dict.fromkeys(name for pair in found.associations for name in pair))
    table = np.zeros((len(names), len(names)))
    place = {name: number for number, name in enumerate(names)}
    for (one, other), value in found.associations.items():
        table[place[one], place[other]] = table[place[other], place[one]] = value
    return Section(
        title="The worst pairs",
        explanation="Difference of how strongly two columns go together: Spearman's correlation of"
        " two numbers, the correlation ratio of a number's ranks and a category, Cramer's V of two"
        " categories. Ranks, because a few large numbers would hide what all others have to do"
        " with a category. A category is one column, however many values it has. Columns of the"
        " next step are below." + _by(found, found.paired),
        metrics=_metrics(found.pairs),
        figures=[
            PrivateFigure(
                image=plots.pair_differences(table, names),
                caption="Strength of each pair in the synthetic rows, less that in the real ones",
            )
        ]
        if names
        else [],
    )


def _rules(found: Usefulness) -> Section:
    return Section(
        title="Exact rules",
        explanation="What holds in every real row, or nearly: a column follows from another one,"
        " numbers differ by a constant or are multiples, a category picks the number that another"
        " one is, values never meet. One half of the real units teaches a rule. The figure is the"
        " share of the synthetic rows that keep to it, among those that it says something of;"
        " beside it, of the other half. Of rules over the same columns, or over those that follow"
        " from them, the worst is shown." + _by(found, RULE_ROWS),
        metrics=[
            Metric(
                name=one.share.name,
                value=one.share.value,
                reference=one.share.reference,
                explanation=one.rule.says,
            )
            for one in told_once(found.rules, found.follows)[:SHOWN]
        ]
        or [Metric(name="exact rules", value="none: no relation holds in all real rows")],
    )


def _or_an_action(found: Usefulness) -> str:
    return f", or an action from {found.terms.state}" if found.terms.action else ""


def _taught(found: Usefulness) -> Section:
    return Section(
        title=f"What follows from {found.terms.given}",
        explanation=f"A forest learns each column from {found.terms.given} of the synthetic rows,"
        " and foretells it in real ones. The figure is the share of its variation that is"
        " explained; beside it, of a forest that learned from other real rows."
        + _by(found, TAUGHT_ROWS),
        metrics=_metrics(found.taught),
    )


def _chosen(found: Usefulness) -> Section:
    return Section(
        title=f"How {found.terms.action} is chosen from {found.terms.state}",
        explanation=f"A forest learns each action from {found.terms.state} alone, in the same way."
        + _by(found, TAUGHT_ROWS),
        metrics=_metrics(found.chosen),
    )


def _over_time(found: Usefulness) -> Section:
    return Section(
        title="From one step to the next",
        explanation="Difference of how strongly a column goes together with itself one step later,"
        " of a number that grows also among rows of the same time, beside whose mean it stands;"
        " of the share of steps that keep its value, and of how the spread of a number changes"
        " along trajectories: the correlation of its distance from the step's median with the step."
        + _by(found),
        metrics=_metrics(found.over_time),
    )


def _profiles(found: Usefulness) -> Section:
    return Section(
        title="Along trajectories",
        explanation="How far the mean of a number at each step is from that of the real rows, in"
        " its standard deviations: the root mean square over up to eight groups of steps, without"
        " what all of them have in common. Pairs with the step see what rises or falls alone."
        + _by(found),
        metrics=_metrics(found.profiles),
    )


def _events(found: Usefulness) -> Section:
    return Section(
        title="Rare events",
        explanation=f"Values that fewer than {SELDOM:.0%} of the real rows have, but enough of them"
        " to count. The figure is the share of the synthetic rows, beside it that of the real ones;"
        f" of columns of two values, the share among the rows of a value that fewer than"
        f" {RARE_EVENT:.0%} have." + _by(found),
        metrics=[
            Metric(name=one.name, value=one.value, reference=one.reference)
            for one in (*found.events[:SHOWN], *found.rates[:SHOWN])
        ]
        or [Metric(name="rare events", value="none: no rare value has enough rows and units")],
    )


def _areas(found: Usefulness) -> Section:
    return Section(
        title="Who can tell synthetic rows from real ones",
        explanation="Area under the curve of a classifier that sees what is named of a row. 0.5: it"
        " cannot tell; 1: it always can." + _by(found, AREA_ROWS),
        metrics=[
            replace(metric, name=found.terms.seen(metric.name)) for metric in _metrics(found.areas)
        ],
    )
