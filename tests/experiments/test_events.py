"""Events for TensorBoard: the numbers of metrics.jsonl, and nothing that tells a time."""

from pathlib import Path

import pytest

from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.agents import write_curves
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.events import write_events
from distributed_privrl.privacy.metrics import PublicValue
from tests.worlds.answers import released
from tests.worlds.events import events_of, scalars_of, searched_in

LINES = [
    {"stage": PublicValue("count"), "units": PublicValue(40), "said": PublicValue(True)},
    {"stage": PublicValue("rounds"), "units": released(41.5, "e1"), "lost": PublicValue(None)},
    {"score": released(0.25, "e1"), "some": PublicValue((1.0, 2.0))},
]


def test_the_numbers_of_metrics_are_scalars(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_metrics(iter(LINES))
    assert len(directory.metrics.read_text().splitlines()) == 3
    assert scalars_of(directory.events) == [
        (0, "count/units", 40.0),
        (1, "rounds/units", 41.5),
        (2, "score", 0.25),
    ]


def test_agents_have_their_curves_by_gradient_steps_and_those_of_real_rows_none(
    tmp_path: Path,
) -> None:
    directory = RunDirectory(tmp_path)
    trial = {"trainer": "iql", "seed": 1, "curve_steps": [10, 20], "curve_returns": [[1, 2], [4]]}
    failed = {"trainer": "iql", "seed": 2, "failed": "ValueError"}
    write_curves([trial, failed], directory, Sourced.public("some/rows-v0"))
    (written,) = directory.events.parent.rglob(directory.events.name)
    assert written.parent.name == "iql-1"
    assert scalars_of(written) == [(10, "return", 1.5), (20, "return", 4.0)]
    write_curves([trial], directory, Sourced.private("some/rows-v0"))
    assert not [*directory.events.parent.rglob(directory.events.name)]


def test_no_event_tells_a_time_nor_the_name_a_host(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_metrics(LINES)
    version, *others = events_of(directory.events)
    assert version.file_version == "brain.Event:2"
    assert [event.wall_time for event in (version, *others)] == [0, 0, 1, 2]
    assert [event.step for event in others] == [0, 1, 2]
    assert [path.name for path in directory.events.parent.iterdir()] == ["events.out.tfevents"]


def test_the_same_metrics_are_the_same_bytes_and_written_again_they_are_not_doubled(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    searched = {"epsilon": PublicValue(1.5), "rule": PublicValue("adam"), "on": PublicValue(True)}
    for path in (first, second, second):
        write_events(path, LINES, searched=searched)
    assert first.read_bytes() == second.read_bytes()
    assert searched_in(first) == {"epsilon": 1.5, "rule": "adam", "on": True}


@pytest.mark.parametrize("value", [0.3, 3, "a"])
def test_a_bare_value_is_refused_and_nothing_is_written(tmp_path: Path, value: object) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(TypeError, match="bare"):
        directory.write_metrics([{"loss": value}])  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="bare"):
        write_events(directory.events, [{"loss": value}])  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="bare"):
        write_events(directory.events, [], searched={"loss": value})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())
