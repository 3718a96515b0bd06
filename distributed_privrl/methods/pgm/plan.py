"""What a run of `pgm` releases and costs, from public facts alone."""

import math

from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.one_shot import OneShot, Vector, columns_of, one_shot_plan
from distributed_privrl.marginals.plan import MarginalsPlan, integer_sensitivity
from distributed_privrl.marginals.stage import ForeseenTable
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.methods.pgm.config import PgmConfig
from distributed_privrl.methods.pgm.selection import public_cliques
from distributed_privrl.privacy.units import Relation, UnitCount


def pgm_plan(
    config: PgmConfig,
    *,
    table: ForeseenTable,
    units: UnitCount,
    epsilon: float | None,
    spent: float,
) -> MarginalsPlan:
    """Return the plan: all columns, then all joint counts as one vector.

    Args:
        config: of the run.
        table: its columns; where nothing is known of them, the plan counts on as many joint counts
            as are asked for.
        units: how many there are.
        epsilon: of the stage; None: without privacy.
        spent: epsilon that the run spends before it.

    Privacy: a unit moves each joint count by `integer_sensitivity` at most, and k of them together
    by sqrt(k) times that; event ``discrete_gaussian``.
    """
    training = config.training
    cliques = () if table.columns is None else cliques_of(config, table.columns)
    columns, _ = columns_of(table)
    asked = min(training.pairs, math.comb(columns, 2)) + training.triples
    count = max(asked if table.columns is None else len(cliques), 1)
    sensitivity = integer_sensitivity(Relation(config.privacy.relation)) * math.sqrt(count)
    shot = OneShot(
        columns_share=training.columns_share,
        vectors=(Vector(sensitivity=sensitivity, share=1 - training.columns_share, count=count),),
        cliques=cliques,
        about={"joint_counts": count},
        noise=f"{count} joint counts",
    )
    return one_shot_plan(config, shot, table=table, units=units, epsilon=epsilon, spent=spent)


def cliques_of(config: PgmConfig, columns: TableColumns) -> tuple[Clique, ...]:
    """Return the joint counts that a run measures: the same in every process."""
    random = Streams(config.seed).child("pgm").numpy("joint counts")
    return public_cliques(columns, config.model, config.training, random)
