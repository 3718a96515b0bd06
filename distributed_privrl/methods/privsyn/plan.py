"""What a run of `privsyn` releases and costs, from public facts alone."""

import math

from distributed_privrl.marginals.one_shot import OneShot, Vector, columns_of, one_shot_plan
from distributed_privrl.marginals.plan import MarginalsPlan, integer_sensitivity
from distributed_privrl.marginals.stage import ForeseenTable
from distributed_privrl.methods.privsyn.config import PrivsynConfig
from distributed_privrl.methods.privsyn.selection import FINEST_WEIGHT
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation, UnitCount


def privsyn_plan(
    config: PrivsynConfig,
    *,
    table: ForeseenTable,
    units: UnitCount,
    epsilon: float | None,
    spent: float,
) -> MarginalsPlan:
    """Return the plan: all columns, a difference of each pair, the pairs that they select.

    Args:
        config: of the run.
        table: its columns.
        units: how many there are.
        epsilon: of the stage; None: without privacy.
        spent: epsilon that the run spends before it.

    Privacy: see `difference_sensitivity`, and `selection.weights_of` for the pairs: whichever are
    selected, a unit moves them by `FINEST_WEIGHT` `integer_sensitivity` at most. Events:
    ``discrete_gaussian``, one a step.
    """
    relation, training = Relation(config.privacy.relation), config.training
    columns, _ = columns_of(table)
    pairs = max(math.comb(columns, 2), 1)
    scores = Vector(
        sensitivity=difference_sensitivity(relation, pairs), share=training.scores_share
    )
    tables = Vector(
        sensitivity=FINEST_WEIGHT * integer_sensitivity(relation), share=training.tables_share
    )
    shot = OneShot(
        columns_share=training.columns_share,
        vectors=(scores, tables),
        joint_scale=math.sqrt(columns) / FINEST_WEIGHT,  # as many pairs of one size as columns
        about={"pairs": pairs},
        noise="pairs that are selected",
    )
    return one_shot_plan(config, shot, table=table, units=units, epsilon=epsilon, spent=spent)


def difference_sensitivity(relation: Relation, pairs: int) -> float:
    """Return by how much one unit moves all pairs' differences together, in L2.

    Each moves by `UNIT_WEIGHT` where a unit is added or taken away, by twice that where one becomes
    another.

    Args:
        relation: of neighbouring datasets.
        pairs: how many there are.
    """
    return relation.contributions * UNIT_WEIGHT * math.sqrt(pairs)
