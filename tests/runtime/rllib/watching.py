"""A training of RLlib that may use nothing of Ray, and what it leaves in folders of a user."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.metrics import Metric

TEMPORARY, RESULTS = "tmp", "ray_results"


def forbid_ray(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Let calls of Ray fail, and folders for temporary files and results lie in ``folder``.

    Returns:
        names of the metrics that are told of anything, as it happens.
    """
    counted: list[str] = []
    record = Metric._record

    def noted(metric: Metric, *about: Any, **more: Any) -> None:
        if not metric._discard_metric:
            counted.append(metric._name)
        record(metric, *about, **more)

    monkeypatch.setattr(Metric, "_record", noted)
    for name in ("init", "put", "get", "wait"):
        monkeypatch.setattr(ray, name, _forbidden(name))
    for name in ("from_items", "read_parquet"):
        monkeypatch.setattr(ray.data, name, _forbidden(name))
    usage = "ray.rllib.algorithms.algorithm.record_extra_usage_tag"
    monkeypatch.setattr(usage, _forbidden("a usage tag"))
    (folder / TEMPORARY).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / TEMPORARY))
    results = "ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH"
    monkeypatch.setattr(results, str(folder / RESULTS))
    return counted


def left(folder: Path) -> list[Path]:
    """Return what lies there, but for the folder that torch makes when it is first used."""
    found = [*(folder / TEMPORARY).rglob("*"), *folder.glob(RESULTS)]
    return [path for path in found if not path.name.startswith("torchinductor")]


def _forbidden(what: str) -> Any:
    def called(*_: Any, **__: Any) -> None:
        raise AssertionError(f"{what} was called")

    return called
