"""What a sweep whose trials are seen ends in: a table, the best trial, a configuration to run."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.files import write_atomically
from distributed_privrl.experiments.sweeps.config import Sweep, overrides_of
from distributed_privrl.experiments.sweeps.job import TrialResult

TABLE, CHOSEN = "results.json", "chosen.yaml"
SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Trials that differ in their seed alone.

    Args:
        values: of the other axes.
        trials: those that have a score.
    """

    values: Mapping[str, Any]
    trials: Sequence[TrialResult]

    @property
    def scores(self) -> list[float]:
        """Scores of the trials."""
        return [one.score for one in self.trials if one.score is not None]

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores))


def settings_of(results: Sequence[TrialResult]) -> list[Setting]:
    """Return what was tried, seeds together, the best first; without what has no score."""
    groups: dict[str, list[TrialResult]] = defaultdict(list)
    for one in results:
        if one.score is not None:
            values = {path: value for path, value in one.values.items() if path != SEED}
            groups[json.dumps(values, sort_keys=True)].append(one)
    found = [Setting(values=json.loads(key), trials=trials) for key, trials in groups.items()]
    return sorted(found, key=lambda setting: -setting.mean)


def write_outcome(sweep: Sweep, results: Sequence[TrialResult], out: Path) -> Setting | None:
    """Write ``results.json`` and, where a trial has a score, ``chosen.yaml``; return the best.

    Args:
        sweep: what was asked for.
        results: of all trials.
        out: the sweep's folder.
    """
    settings = settings_of(results)
    table = {
        "method": sweep.base.method,
        "pays": sweep.selection.pays,
        "score": sweep.selection.score.model_dump(mode="json"),
        "trials": [one.to_json() for one in results],
        "settings": [
            {"values": dict(one.values), "mean": one.mean, "scores": one.scores} for one in settings
        ],
    }
    write_atomically(out / TABLE, json.dumps(table, indent=1) + "\n")
    if not settings:
        return None
    best = settings[0]
    values = with_overrides(sweep.values, overrides_of(best.values))
    write_atomically(out / CHOSEN, yaml.safe_dump(values, sort_keys=False))
    return best
