"""Public trials that release rows: what is made of public rows says so from the first byte."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import publishing, run
from distributed_privrl.experiments.clearance import release_of
from distributed_privrl.experiments.sweeps import trial
from distributed_privrl.experiments.sweeps.trial import run_trial
from tests.worlds.choosing import make_quick
from tests.worlds.swept import public_jobs


def test_a_killed_public_trial_has_never_stated_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is killed: all that it wrote of a certificate is seen."""
    make_quick(monkeypatch)
    stated, write, right = list[str](), run.write_atomically, DatasetStore.update_metadata

    def written(path: Path, content: str, **settings: Any) -> None:
        if path.name == "certificate.json":
            stated.append(json.loads(content)["status"])
        write(path, content, **settings)

    def updated(store: DatasetStore, dataset: str, values: Mapping[str, Any]) -> None:
        stated.append(values[CERTIFICATE_KEY]["status"])
        right(store, dataset, values)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    (job,) = public_jobs(tmp_path, epsilons=[4])
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_atomically", written)
        patch.setattr(publishing.DatasetStore, "update_metadata", updated)
        patch.setattr(trial, "score_of", killed)
        with pytest.raises(KeyboardInterrupt):
            run_trial(job, LocalExecutor(), ledger="sqlite:////never/opened.sqlite")
    assert stated == ["non_private"]

    ended = run_trial(job, LocalExecutor(), ledger="sqlite:////never/opened.sqlite")
    assert ended.score is not None
    assert 3.5 < (ended.epsilon or 0) <= 4, "that its own ledger was charged"
    release = release_of(DatasetStore(Path(job.root)), ended.released)
    assert release is not None, "agents of any trainer may read it"
    assert release.certificate is None
    assert not list(job.run.rglob("metrics.jsonl"))
