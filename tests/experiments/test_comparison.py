from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation import trajectory_score
from distributed_privrl.evaluation.figures import PrivateFigure
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.trajectory_score import TrajectoryScoreConfig
from distributed_privrl.experiments import comparison
from distributed_privrl.experiments.comparison import (
    attempted_sections,
    fidelity_section,
    score_trajectories,
    trajectory_section,
)
from distributed_privrl.experiments.evaluate import (
    EvaluationRequest,
    Surroundings,
    evaluate_datasets,
)

NAMES = ("x", "y", "reward")
QUICK = TrajectoryScoreConfig(window=6, width=32, embedding=4, steps=150, sample=40, permutations=3)


def metrics(section: Section) -> dict[str, Any]:
    return {metric.name: metric.value for metric in section.metrics}


def test_fidelity_shows_coverage_and_neighbours() -> None:
    source = np.random.default_rng(0)
    real, fresh = source.normal(size=(2, 400, 3))
    same, copied = (fidelity_section(real, rows, NAMES, None) for rows in (fresh, real))
    assert metrics(same)["coverage"] == pytest.approx(0.97, abs=0.04)
    nearest = "distance to the nearest real row, percentile 50"
    assert metrics(copied)[nearest] == 0
    assert metrics(same)[nearest] > 0.1
    assert metrics(fidelity_section(real, fresh + 9, NAMES, None))["coverage"] == 0
    captions = [figure.caption for figure in same.figures]
    assert captions == ["Each column", "Rows in the plane"]
    assert all(isinstance(figure, PrivateFigure) for figure in same.figures)


def test_no_row_is_told_by_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """What overflows beyond its sum, such as the largest number of float32, warns in numpy."""
    real = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    real[:20, 0] = np.finfo(np.float32).max
    found = attempted_sections("Fidelity", lambda: [fidelity_section(real, real[20:], NAMES, None)])
    assert [section.title for section in found]
    assert not recwarn.list


def test_too_few_real_rows_for_coverage_are_told() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3))
    assert metrics(fidelity_section(rows, rows, NAMES, None))["coverage"] == (
        "not applicable: 5 real rows"
    )


def walks(store: DatasetStore, dataset: str, *, seed: int, count: int = 60, steps: int = 7) -> None:
    source = np.random.default_rng(seed)
    phase = source.uniform(0, 6, size=(count, 1))
    observations = np.sin(phase + 0.5 * np.arange(steps + 1)).reshape(-1, 1)
    store.write_trajectories(
        dataset,
        Trajectories(
            observations=np.repeat(observations, 2, axis=1),
            actions=np.cos(phase + 0.5 * np.arange(steps)).reshape(-1, 1),
            rewards=np.zeros(count * steps),
            terminated=np.zeros(count * steps, bool),
            truncated=np.tile(np.arange(steps) == steps - 1, count),
            offsets=np.arange(count + 1) * steps,
            unit_ids=np.arange(count),
        ),
        observation_space=Box(-np.inf, np.inf, (2,)),
        action_space=Box(-np.inf, np.inf, (1,)),
    )


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    made = DatasetStore(tmp_path / "datasets")
    for seed, name in enumerate(("real", "synthetic", "public")):
        walks(made, f"walk/{name}-v0", seed=seed)
    walks(made, "walk/short-v0", seed=4, steps=3)
    rows = made.read_transitions("walk/real-v0", unit="transition")
    info = made.info("walk/real-v0")
    made.write_transitions(
        "walk/rows-v0",
        rows,
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
    )
    return made


def scored(store: DatasetStore, **datasets: str) -> Any:
    names = {"real": "real", "synthetic": "synthetic", "public": "public"} | datasets
    return score_trajectories(
        store, config=QUICK, **{side: f"walk/{name}-v0" for side, name in names.items()}
    )


def test_trajectories_are_scored_and_shown(store: DatasetStore) -> None:
    score = scored(store)
    assert score.windows == 30
    assert score.score > score.chance
    shown = metrics(trajectory_section(score, "walk/public-v0"))
    assert shown["TrajScore"] == score.score
    assert shown["TrajScore by chance"] == score.chance
    assert shown["TrajScore of real windows"] == score.ceiling


@pytest.mark.parametrize(
    ("datasets", "reason"),
    [
        ({"synthetic": "rows"}, "walk/rows-v0 holds independent transitions"),
        ({"real": "rows"}, "walk/rows-v0 holds independent transitions"),
        ({"synthetic": "short"}, "walk/short-v0 has 0 windows of 6 steps"),
    ],
)
def test_where_there_is_no_score_the_reason_is_given(
    store: DatasetStore, datasets: dict[str, str], reason: str
) -> None:
    score = scored(store, **datasets)
    assert score.startswith(f"not applicable: {reason}")
    assert metrics(trajectory_section(score, "walk/public-v0")) == {"TrajScore": score}


def test_the_autoencoder_sees_public_trajectories_alone(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    right = trajectory_score.WindowEncoder

    class Watched(right):  # type: ignore[misc, valid-type]
        def __init__(self, public: np.ndarray, *others: Any) -> None:
            trained.append(public)
            super().__init__(public, *others)

    monkeypatch.setattr(trajectory_score, "WindowEncoder", Watched)
    scored(store)
    layout = comparison.RowLayout(Box(-np.inf, np.inf, (2,)), Box(-np.inf, np.inf, (1,)))
    expected = trajectory_score.windows_of(store.read_trajectories("walk/public-v0"), layout, 6)
    (windows,) = trained
    np.testing.assert_array_equal(windows, expected)


def test_evaluate_takes_a_public_set(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_score, "TrajectoryScoreConfig", lambda: QUICK)
    arguments: dict[str, Any] = {
        "synthetic": "walk/synthetic-v0",
        "reference": "walk/real-v0",
        "public": "walk/public-v0",
        "trainers": (),
    }
    around = Surroundings(store=store)
    evaluate_datasets(EvaluationRequest(**arguments), around, out=tmp_path / "out")
    assert "TrajScore by chance" in (tmp_path / "out" / "private" / "report.html").read_text()
    assert not (tmp_path / "out" / "report.html").exists()  # it has no certificate
    for wrong, message in (
        ({"reference": None}, "add --reference"),
        ({"public": "walk/real-v0"}, "is the reference"),
        ({"public": "walk/none-v0"}, "no dataset"),
    ):
        request = EvaluationRequest(**{**arguments, **wrong})
        with pytest.raises(ConfigError, match=message):
            evaluate_datasets(request, around, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
