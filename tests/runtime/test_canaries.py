"""The canary round on Ray: coins, sums, charge and noise of processes that a run has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.executor import Executor
from distributed_privrl.evaluation import canaries
from distributed_privrl.experiments.audit import audit_configuration
from tests.worlds import mazes

FAR = 5.0  # standard errors: false alarms below 1e-6


class Shared:
    """The session's Ray, which an audit must not end; what it is asked to start is noted."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.asked: list[RuntimeConfig] = []
        self.started: list[str] = []
        self.closed = 0

    def for_runtime(self, runtime: RuntimeConfig) -> "Shared":
        self.asked.append(runtime)
        return self

    def start(self, worker_cls: type, shards: Sequence[Any], **options: Any) -> Any:
        self.started += [worker_cls.__name__] * len(shards)
        return self._executor.start(worker_cls, shards, **options)

    def close(self) -> None:
        self.closed += 1


def test_an_audit_s_round_is_where_the_run_would_be(
    tmp_path: Path, ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "WORKERS", 1)
    shared = Shared(ray_executor)
    config = mazes.ar_config(runtime={"workers": 2, "executor": "ray", "cpus_per_worker": 0.5})
    audit = audit_configuration(config, out=tmp_path, start_executor=shared.for_runtime)
    (runtime,) = shared.asked
    assert (runtime.executor, runtime.workers * runtime.cpus_per_worker) == ("ray", 1.0)
    assert shared.started == ["LocalUpdateWorker", "ParameterServer", "LocalUpdateWorker"]
    assert shared.closed == 1
    found = audit.canary
    assert not isinstance(found, str)
    error = (found.mu.high - found.mu.low) / (2 * 1.96)
    assert abs(found.mu.value - found.charged_mu) < FAR * error
    assert found.noise_source == "float64_lattice"
    assert json.loads((tmp_path / "canary.json").read_text())["mu"]["value"] == found.mu.value
    assert [path.name for path in tmp_path.iterdir()] == ["canary.json"]
