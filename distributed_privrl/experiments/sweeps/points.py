"""The trials of a sweep whose trials are all seen: points of the search, each with a name."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.random import Streams
from distributed_privrl.experiments.sweeps.config import ComposedSelection, PublicSelection, Sweep

_LONGEST_NAME = 60
_RUNTIME = "runtime"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A trial, before it is run.

    Args:
        name: of its folder; the same for the same configuration, whatever else the sweep has.
        values: of the axes, by their paths.
        config: of the run that the file describes, at this point.
    """

    name: str
    values: Mapping[str, Any]
    config: RunConfig


def points_of(sweep: Sweep) -> tuple[Point, ...]:
    """Return all trials of a sweep: each point of the grids as often as ``selection.trials``.

    What is drawn is drawn from the public seed of the configuration; of equal trials one is left.

    Raises:
        ConfigError: a configuration is impossible.
    """
    assert isinstance(sweep.selection, PublicSelection | ComposedSelection)
    random = Streams(sweep.base.seed).child("sweep").numpy("points")
    grids = {path: axis.grid for path, axis in sweep.search.items() if axis.grid is not None}
    found: dict[str, Point] = {}
    for _ in range(sweep.selection.trials):
        for chosen in product(*grids.values()):
            fixed = dict(zip(grids, chosen, strict=True))
            values = {
                path: fixed[path] if path in fixed else axis.draw(random)
                for path, axis in sweep.search.items()
            }
            point = _point(sweep, values)
            found.setdefault(point.name, point)
    return tuple(found.values())


def _point(sweep: Sweep, values: Mapping[str, Any]) -> Point:
    config = sweep.config_of(values)
    return Point(name=name_of(values, config), values=values, config=config)


def name_of(values: Mapping[str, Any], config: RunConfig) -> str:
    """Return the name of a trial: its values for people, a hash of the whole run for the rest.

    Args:
        values: of the axes.
        config: of the run; where it happens does not count.
    """
    kept = config.model_dump(mode="json", exclude={_RUNTIME})
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    said = "-".join(f"{short}_{_text(values[path])}" for path, short in short_names(values).items())
    kept_letters = re.sub(r"[^A-Za-z0-9_.-]+", "", said)[:_LONGEST_NAME]
    return f"{kept_letters.strip('-.')}-{digest}"


def short_names(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the last part of each path, or all of it where two share their last part.

    Example:
        >>> short_names({"privacy.epsilon": 1, "model.bins": 8})
        {'privacy.epsilon': 'epsilon', 'model.bins': 'bins'}
    """
    last = {path: path.rpartition(".")[2] for path in values}
    often = list(last.values())
    return {path: path if often.count(name) > 1 else name for path, name in last.items()}


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
