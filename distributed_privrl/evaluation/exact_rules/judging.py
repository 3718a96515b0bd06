"""Whether synthetic rows keep to what holds exactly in real ones.

Rules are found in one half of the real units, and are rules if the other half keeps to them, too:
its share is what another real sample has. None of this is a private release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distributed_privrl.data.named_rows import Rows
from distributed_privrl.evaluation.exact_rules.columns import CodedTable, codings_of
from distributed_privrl.evaluation.exact_rules.kinds import NeverTogether, Rule
from distributed_privrl.evaluation.exact_rules.search import FEWEST_ROWS, HOLDS, rules_of
from distributed_privrl.evaluation.followers import Problem, roots
from distributed_privrl.evaluation.judged import Judged, Named, judged

RULE_ROWS = 5000
"""Of each side, at most."""
MOST_COLUMNS = 60
"""The first ones; between further columns no rule is looked for."""
FAR_RULE = 0.05
"""A rule is lost if the share of rows that keep to it is smaller by more than this."""


@dataclass(frozen=True, kw_only=True)
class JudgedRule:
    """A rule, and how many rows keep to it.

    Args:
        rule: as one half of the real units taught it.
        share: of the rows that the rule says something of.
    """

    rule: Rule
    share: Judged

    @property
    def lost(self) -> bool:
        """Whether synthetic rows break it."""
        return self.share.shortfall > FAR_RULE


def judged_rules(
    judge: Rows, other: Rows, made: Rows, names: Sequence[str], rng: np.random.Generator
) -> tuple[JudgedRule, ...]:
    """Return the rules that hold in real rows, those first that synthetic rows break most.

    Of rules that are broken alike, to a hundredth, those come last that say what never meets: the
    others are plainer.

    Args:
        judge: real rows, which teach the rules.
        other: rows of other real units, which must keep to them.
        made: synthetic rows.
        names: columns that vary in the real rows, a row's own ones before those of its successor.
        rng: of subsamples.
    """
    some = [rows.sample(RULE_ROWS, rng) for rows in (judge, other, made)]
    codings = codings_of(some[0].frame, names[:MOST_COLUMNS])
    taught, own, theirs = (CodedTable.of(rows.frame, codings, rows.units) for rows in some)
    found = []
    for rule in rules_of(taught, later=judge.successor):
        both = [rule.asked(rows) for rows in (own, theirs)]
        told = min(int(one.concerned.sum()) for one in both) >= FEWEST_ROWS
        if told and both[0].share >= HOLDS:
            name = Named(f"{rule.target} given {rule.given}", (rule.target, rule.given))
            share = judged(name, [both[1].share], [both[0].share])
            found.append(JudgedRule(rule=rule, share=share))
    return tuple(sorted(found, key=place_of))


def place_of(one: JudgedRule) -> tuple[float, bool, float]:
    """Return what sorts rules: those that are broken most, and of them the plainer ones, first."""
    shortfall = one.share.shortfall
    return -round(shortfall, 2), isinstance(one.rule, NeverTogether), -shortfall


def told_once(rules: Sequence[JudgedRule], follows: Mapping[str, str]) -> list[JudgedRule]:
    """Return the first of the rules over the same columns, or over those that follow from them.

    Args:
        rules: the worst first.
        follows: columns that another one tells, and that other one.
    """
    found: dict[frozenset[str], JudgedRule] = {}
    for one in rules:
        found.setdefault(roots(one.share.columns, follows), one)
    return list(found.values())


def rule_problems(rules: Sequence[JudgedRule]) -> list[Problem]:
    """Return what rows are not useful for, of each column by the rule that they break most.

    Args:
        rules: the worst first.
    """
    lost: dict[str, Problem] = {}
    for one in rules:
        if one.lost:
            rule, share = one.rule, one.share
            text = (
                f"what depends on {share.name}: {rule.says}; of the rows that it"
                f" concerns, {share.reference:.1%} of other real ones keep to it,"
                f" {share.value:.1%} of synthetic ones"
            )
            lost.setdefault(rule.target, Problem(text=text, kind="rule", columns=share.columns))
    return list(lost.values())
