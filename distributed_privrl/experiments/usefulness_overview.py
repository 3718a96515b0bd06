"""The first section of a private report: what a release is worth in short, and what it is not."""

from collections.abc import Sequence
from statistics import fmean

from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.evaluation.problems import problems_of
from distributed_privrl.evaluation.relations import (
    CLEARLY,
    LEAST_RELATION,
    LEAST_WEAK,
    kept_relations,
    kept_weak_relations,
)
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.usefulness import Usefulness

TITLE = "What the release is worth"
SHOWN = 10
"""Columns, pairs and events that a section names, the worst ones."""
_NAMED = 3
"""Lost relations that the first paragraph names."""


def overview(found: Usefulness, rows: int) -> Section:
    """Return what rows are worth in short; ``rows`` are all that the real dataset has."""
    problems = problems_of(found)
    return Section(
        title=TITLE,
        explanation=_in_short(found, len(problems)),
        metrics=[
            Metric(
                name="real units compared",
                value=found.units,
                explanation="all" if found.rows == rows else "of which some rows are compared",
            ),
            Metric(
                name="real rows compared",
                value=found.rows,
                explanation=f"of {rows:,}, beside {found.made:,} synthetic ones; each table below"
                " says how many it rests on",
            ),
            *_relations(found),
            *_weak_relations(found),
            *_vanished(found),
            *_followers(found),
            *_mean("mean distance of a column", found.columns, "0: as in the real rows"),
            *_mean("mean difference of a relation", found.pairs, "0: as in the real rows"),
            *_mean(f"mean share explained by {found.terms.given}", found.taught, "more is better"),
            *(
                Metric(
                    name=f"constant: {name}",
                    value=share,
                    explanation="share of synthetic rows with another value than the only one of"
                    " the real rows; left out below",
                )
                for name, share in found.constants.items()
            ),
        ],
        not_useful=problems,
    )


def _in_short(found: Usefulness, problems: int) -> str:
    """Return whether the rows are good, what is lost, and what to do, without a term."""
    kept = kept_relations(found.own_pairs)
    good = (
        f"Not good for everything: {problems} {'check' if problems == 1 else 'checks'} failed, and"
        " red lines at the top of this page say what the rows are of no use for."
        if problems
        else "Good as far as these checks go: none of them failed."
    )
    relations = (
        f" Of {kept.relations} clear relations between two columns {kept.kept} are there as in the"
        " real rows."
        if kept.relations
        else " No two columns of the real rows clearly go together, so that none could be lost."
    )
    lost = (
        f" Above all {', '.join(one.name for one in kept.lost[:_NAMED])} are lost, or far from what"
        " they were."
        if kept.lost
        else ""
    )
    return (
        f"{good}{relations}{lost} What to do: use the rows for what no red line names. If one names"
        " what you need, take more epsilon in a further run, which is charged anew (once this"
        " import of people is charged, another one with fewer columns gets no budget); do not"
        " choose between runs by this page, nor name columns to count together by it: no guarantee"
        " covers it. Each figure below stands"
        " beside what another real sample would score: nothing can be expected to be nearer than"
        " that."
    )


def _relations(found: Usefulness) -> list[Metric]:
    """Return how many relations are kept, and the strongest of those that are not."""
    kept = kept_relations(found.own_pairs)
    if not kept.relations:
        return []
    names = [one.name for one in kept.lost[:SHOWN]]
    lost = f"; lost, the strongest first: {', '.join(names)}" if names else ""
    faded = _sides(kept.faded[:SHOWN])
    if faded:
        lost += (
            "; less than half of it left, but real samples differ too much to call it lost"
            f" (in real rows, in synthetic ones): {', '.join(faded)}"
        )
    return [
        Metric(
            name="relations that are kept",
            value=f"{kept.kept} of {kept.relations}",
            explanation=f"pairs of columns whose strength is {LEAST_RELATION:g} or more{lost}",
        )
    ]


def _weak_relations(found: Usefulness) -> list[Metric]:
    """Return how many weak relations are kept, and the strongest of those that are not."""
    kept = kept_weak_relations(found.own_pairs)
    if not kept.relations:
        return []
    told = "".join(
        f"; {word} (in real rows, in synthetic ones): {', '.join(_sides(some[:SHOWN]))}"
        for word, some in (("lost", kept.lost), ("faded", kept.faded))
        if some
    )
    return [
        Metric(
            name="weak relations that are kept",
            value=f"{kept.kept} of {kept.relations}",
            explanation=f"pairs of columns whose strength is {LEAST_WEAK:g} to {LEAST_RELATION:g},"
            f" and more than {CLEARLY:g} times what real samples differ by; never red{told}",
        )
    ]


def _sides(relations: Sequence[Judged]) -> list[str]:
    return [f"{one.name} ({one.real:.2f}, {one.synthetic:.2f})" for one in relations]


def _first_of(named: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"{', '.join(named[:SHOWN])}{more}"


def _vanished(found: Usefulness) -> list[Metric]:
    """Return the categories that no synthetic row has."""
    if not found.vanished:
        return []
    named = [f"{name} ({count:,} rows)" for name, count in found.vanished.items()]
    return [
        Metric(
            name="values that no synthetic row has",
            value=len(named),
            explanation=f"{_first_of(named)}: of the real rows that were compared",
        )
    ]


def _followers(found: Usefulness) -> list[Metric]:
    """Return the columns that another one tells, whose relations are those of that one."""
    if not found.follows:
        return []
    named = [f"{name} from {teller}" for name, teller in found.follows.items()]
    return [
        Metric(
            name="columns that follow from another one",
            value=len(named),
            explanation=f"{_first_of(named)}: in every real row that was"
            " compared; the next step's value of what a person keeps follows from the row's own."
            " Whether synthetic rows keep to it is an exact rule. Relations of these columns are"
            " not counted above, and red lines that say one thing again are counted",
        )
    ]


def _mean(name: str, figures: Sequence[Judged], explanation: str) -> list[Metric]:
    if not figures:
        return []
    return [
        Metric(
            name=name,
            value=fmean(one.value for one in figures),
            reference=fmean(one.reference for one in figures),
            explanation=explanation,
        )
    ]
