from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.collection import RECIPES, collect
from distributed_privrl.collection.tabular import TABULAR_RECIPES
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import tabular_problem
from distributed_privrl.environments.tabular import optimal_policy, policy_value, uniform_policy
from tests.worlds.opened import opened


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    return DatasetStore(tmp_path)


@pytest.mark.parametrize("recipe", [recipe.name for recipe in TABULAR_RECIPES])
def test_a_recipe_writes_what_it_generates(recipe: str, store: DatasetStore) -> None:
    counted = "patients" if recipe == "icu-sepsis" else "trajectories"
    info = collect(recipe, dataset="t-v0", store=store, seed=5, options={counted: 300})
    chosen = RECIPES[recipe]
    options = chosen.options(**{counted: 300})
    expected = Trajectories.concatenate(
        list(chosen.trajectories(steps=0, options=options, streams=Streams(5)))
    )
    stored = store.read_trajectories("t-v0")
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "offsets"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(expected, name))
    assert (info.layout, opened(info.total_trajectories)) == ("packed", 300)
    assert opened(info.total_steps) == len(expected.rewards) <= chosen.total_steps(None, options)
    assert tabular_problem(info.environment or "") is not None


def test_a_patient_is_a_unit(store: DatasetStore) -> None:
    info = collect("icu-sepsis", dataset="t-v0", store=store, options={"patients": 40})
    assert info.unit_column == "patient_id"
    assert store.read_trajectories("t-v0").unit_ids.tolist() == list(range(40))
    rows = store.read_transitions("t-v0", unit="patient_id")
    assert sorted(set(rows.unit_ids.tolist())) == list(range(40))


@pytest.mark.parametrize("horizon", [None, 6])
def test_metadata_has_exact_reference_values(horizon: int | None, store: DatasetStore) -> None:
    options = {"trajectories": 5, "instance": "b", "horizon": horizon}
    info = collect("linear-mdp", dataset="t-v0", store=store, seed=2, options=options)
    assert info.environment == "privrl/LinearMDP-b-v0"
    steps = 5 * (horizon or 20)
    assert opened(info.metadata)["collection"] == {
        "recipe": "linear-mdp",
        "seed": 2,
        "steps": steps,
        "options": options,
    }
    assert opened(info.total_steps) == steps
    mdp = tabular_problem("privrl/LinearMDP-b-v0")
    assert mdp is not None
    values = dict(opened(info.metadata)["reference_values"])
    assert values.pop("horizon") == (horizon or 20)
    assert values == pytest.approx(
        {
            "uniform": policy_value(mdp, uniform_policy(mdp), horizon=horizon),
            "behaviour": policy_value(mdp, mdp.behaviour, horizon=horizon),
            "optimal": policy_value(mdp, optimal_policy(mdp, horizon=horizon)[0], horizon=horizon),
        }
    )


def test_a_problem_that_never_changes_may_last_longer(store: DatasetStore) -> None:
    options = {"trajectories": 200, "horizon": 60}
    info = collect("gridworld", dataset="t-v0", store=store, options=options)
    assert 20 < store.read_trajectories("t-v0").lengths.max() <= 60
    assert opened(info.metadata)["reference_values"]["horizon"] == 60


def test_the_last_progress_says_that_all_is_done(store: DatasetStore) -> None:
    told: list[tuple[int, int]] = []
    info = collect(
        "gridworld", dataset="t-v0", store=store, progress=lambda *numbers: told.append(numbers)
    )
    assert told == [
        (opened(info.total_steps), 20_000),
        (opened(info.total_steps), opened(info.total_steps)),
    ]


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        ("icu-sepsis", {"steps": 10}, "steps=10 cannot be asked of icu-sepsis.*-o patients=N"),
        ("gridworld", {"steps": 10}, "-o trajectories=N"),
        ("icu-sepsis", {"options": {"trajectories": 3}}, "unknown key 'trajectories'"),
        ("icu-sepsis", {"options": {"patients": 0}}, "patients"),
        ("linear-mdp", {"options": {"instance": "c"}}, "instance"),
        ("linear-mdp", {"options": {"horizon": 21}}, "horizon must be at most 20.*got 21"),
        ("random-mdp", {"options": {"horizon": 0}}, "horizon"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(
    recipe: str, arguments: dict[str, object], message: str, store: DatasetStore
) -> None:
    with pytest.raises(ConfigError, match=message):
        collect(recipe, dataset="t-v0", store=store, **arguments)  # type: ignore[arg-type]
    assert list(store.root.rglob("*")) == []
