"""Which joint counts may be measured, and how much each matters."""

from gymnasium.spaces import MultiDiscrete

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.tables import JointCount
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.marginals.workload import (
    LARGEST_WEIGHT,
    MOST_TRIPLES,
    fitting,
    in_turn,
    workload,
)
from tests.marginals.rows import few_columns

NAMES = {"observation_0": "s", "action": "a", "reward": "r", "next_observation_0": "z", "end": "e"}


def named(cliques: dict[tuple[int, ...], int]) -> dict[str, int]:
    columns = few_columns()
    return {
        "".join(NAMES[columns[i].name] for i in clique): weight
        for clique, weight in cliques.items()
    }


def test_pairs_and_triples_of_a_step_by_hand() -> None:
    assert named(workload(few_columns())) == {
        **{
            "sa": 4,
            "sr": 4,
            "sz": 4,
            "se": 4,
            "ar": 4,
            "az": 4,
            "ae": 4,
            "rz": 1,
            "re": 2,
            "ze": 2,
        },
        **{"saz": 4, "sar": 4, "sae": 4},
    }


def test_no_weight_is_larger_than_scores_are_charged_for() -> None:
    for columns in (few_columns(), wide(6)):
        weights = workload(columns).values()
        assert min(weights) >= 1
        assert max(weights) == LARGEST_WEIGHT


def wide(count: int):
    space = MultiDiscrete([3] * count)
    bounds = Bounds(low=[0.0], high=[1.0], columns=("reward",))
    return step_columns(space, space, bounds, next_observation="absolute")


def test_of_very_many_columns_pairs_alone() -> None:
    assert len(workload(wide(6))) > 14 * 13 / 2
    columns = wide(12)
    cliques = workload(columns)
    assert MOST_TRIPLES < 12 * 12 * 3
    assert {len(clique) for clique in cliques} == {2}
    assert len(cliques) == len(columns) * (len(columns) - 1) / 2


def test_large_counts_are_no_candidates() -> None:
    candidates = {(0, 1): 4, (0, 1, 2): 4, (1, 2): 1}
    assert fitting([4, 5, 6], candidates, most_cells=30) == {(0, 1): 4, (1, 2): 1}


def test_each_third_joint_count_tells_of_rewards_or_ends() -> None:
    columns = few_columns()
    candidates = [JointCount(one) for one in workload(columns)]
    for number in (0, 1, 3, 4):
        assert in_turn(columns, candidates, number) == candidates
    own = named({one.clique: 1 for one in in_turn(columns, candidates, 2)})
    assert set(own) == {"sr", "se", "ar", "ae", "re", "sar", "sae"}
    none = [one for one in candidates if columns.of("next_observation")[0] in one.clique]
    assert in_turn(columns, none, 5) == none  # nothing else is left to measure


def test_how_often_one_comes_matters_to_gaps_as_it_does_to_ends() -> None:
    """Of what never falls alone: others change alike however many rows a person has."""
    weights = {}
    for rising in ((), (0,)):
        columns = few_columns(next_observation="difference", rising=rising)
        columns = columns.with_unit_sizes(UnitSizes(1, 12))
        (change,), (unit,) = columns.of("next_observation"), columns.of("unit")
        weights[rising] = workload(columns)[change, unit]
        assert workload(columns)[columns.of("end", "unit")] == LARGEST_WEIGHT
    assert weights == {(): 1, (0,): LARGEST_WEIGHT}
