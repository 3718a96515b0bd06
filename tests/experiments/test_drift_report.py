"""What is said of trajectories whose steps drift."""

import types
from typing import Any

import pytest

from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.metadata import DRIFT_KEY
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.drift_report import DRIFTS, drift_metrics, drift_verdict
from distributed_privrl.experiments.trajectory_reports import release_warnings
from tests.worlds import walks
from tests.worlds.world import World


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("walks")
    world = World(folder, walks.walk_store(folder / "master"))
    return world.store.info(walks.marginals_config().data.sensitive)


def drift(**missed: float) -> dict[str, Any]:
    columns = {name: {"missed": one, "by_chance": 0.02} for name, one in missed.items()}
    return {"trajectories": 500, "columns": columns}


def test_what_lies_elsewhere_beyond_chance_is_named_the_worst_first(info: Any) -> None:
    found = drift(observation_0=0.15, observation_1=DRIFTS, action=0.3)
    said = drift_verdict(found, info)
    assert "STEPS DRIFT" in said
    assert said.index("(30%)") < said.index("(15%)")
    assert f"({DRIFTS:.0%})" not in said
    metrics = drift_metrics(Sourced.private(found), info)
    assert [one.value for one in metrics] == [0.3, 0.3, 0.15]


def test_nothing_is_said_where_steps_stay_or_nobody_counted(info: Any) -> None:
    within = drift(observation_0=DRIFTS + 0.01, action=0.0)
    for found in (within, {}):
        assert drift_verdict(found, info) == ""
    assert len(drift_metrics(Sourced.private(within), info)) == 1
    assert drift_metrics(Sourced.private({}), info) == []


def test_the_largest_drift_is_named_and_beside_what_chance_misses(info: Any) -> None:
    found = drift(observation_0=0.09, action=0.07)
    found["columns"]["observation_0"]["by_chance"] = 0.06
    (one,) = drift_metrics(Sourced.private(found), info)
    assert one.value == 0.07
    assert "of action" in str(one.explanation)
    assert "Chance would miss 0.02" in str(one.explanation)


def test_the_command_line_warns(info: Any) -> None:
    said: Any = {DRIFT_KEY: drift(action=0.4)}
    released: Any = types.SimpleNamespace(
        metadata=Sensitive(said),
        declared=info.declared,
        action_space=info.action_space,
        observation_space=info.observation_space,
    )
    (warning,) = release_warnings(released)
    assert warning.startswith("STEPS DRIFT: ")
