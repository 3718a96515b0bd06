"""Steps of trajectories that lie elsewhere than the rows that were counted."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.unit_sizes import UnitSizes
from tests.marginals.fields import model_of
from tests.marginals.rows import columns_of

WALKS = 2000


def leading_to(share: float | None, *, by_unit: bool = False) -> TableModel:
    """Return a model whose states are even, and of whose steps a share leads to the first one.

    None: no state more than another. Few steps end.
    """
    columns = columns_of()
    model = model_of(columns.with_unit_sizes(UnitSizes(2, 8)) if by_unit else columns)
    (state,), (reached,) = columns.of("observation"), columns.of("next_observation")
    (end,), size = columns.of("end"), model.field.sizes[state]
    first = 1 / size if share is None else share
    told = np.full((size, size), np.log((1 - first) / (size - 1)))
    told[:, 0] = np.log(first)
    pairs = {(state, reached): told, (end,): np.array([0.0, -5.0, -5.0])}
    return replace(model, field=Field(model.field.sizes, model.field.potentials | pairs))


def drift_of(model: TableModel, longest: int, walks: int = WALKS) -> dict[str, dict[str, float]]:
    rollout = Rollout(model, longest)
    rollout.draw(walks, np.random.default_rng(0))
    facts = rollout.drift.facts()
    assert facts["trajectories"] == walks
    found: dict[str, dict[str, float]] = facts["columns"]
    return found


@pytest.mark.parametrize("by_unit", [False, True])
def test_steps_that_each_lead_to_one_state_are_seen(by_unit: bool) -> None:
    found = drift_of(leading_to(0.6, by_unit=by_unit), 12)
    assert found["observation_0"]["missed"] > 0.3
    for other in ("action", "reward"):
        assert found[other]["missed"] < 0.03, "what no step depends on stays as it was"


def test_steps_that_stay_where_they_are_drift_no_more_than_chance() -> None:
    for one in drift_of(leading_to(None), 12).values():
        assert one["missed"] < 0.03 + one["by_chance"]


def test_a_single_step_has_no_way_to_drift_and_chance_is_told() -> None:
    for seed in range(3):
        rollout = Rollout(leading_to(0.6), 1)
        rollout.draw(50, np.random.default_rng(seed))
        one = rollout.drift.facts()["columns"]["observation_0"]
        assert 0.4 * one["by_chance"] < one["missed"] < 2 * one["by_chance"]


def test_trajectories_on_trial_are_not_counted() -> None:
    rollout = Rollout(leading_to(0.6), 12)
    rollout.draw(100, np.random.default_rng(0))
    rollout.draw(100, np.random.default_rng(1))
    counts = rollout.drift._counts[columns_of().of("action")[0]]
    drawn = [rollout.draw(100, np.random.default_rng(seed)) for seed in (0, 1)]
    assert rollout.drift.facts()["trajectories"] == 400
    assert counts.sum() == 2 * sum(one.lengths.sum() for one in drawn)


def test_what_all_rows_have_is_missed_by_nobody_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares that were rounded up to more than one are no reason for a figure that is none."""
    model = leading_to(None)
    (state,) = model.columns.of("observation")
    whole = np.zeros(model.field.sizes[state])
    whole[0] = np.nextafter(1.0, 2.0)
    right = Crowd.shares

    def rounded_up(crowd: Crowd, places: Iterable[int]) -> dict[int, NDArray[np.float64]]:
        return right(crowd, places) | {state: whole}

    monkeypatch.setattr(Crowd, "shares", rounded_up)
    assert drift_of(model, 2, 50)["observation_0"]["by_chance"] == 0
