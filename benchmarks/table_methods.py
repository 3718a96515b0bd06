"""The generators of the tables' benchmark: names, settings, the configuration of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tables.source import BenchmarkTable
from benchmarks.utility_cells import merged
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.experiments.drafts import CORRELATIONS_SHARE
from distributed_privrl.experiments.registry import METHODS as INSTALLED

LARGEST_BATCH = 1000
LARGEST_RELEASE = 50_000


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """A method of the product as somebody with a CSV and no public rows sets it.

    Args:
        method: its name in the product.
        trajectories: whether it draws whole trajectories (``output.size`` counts them).
        rounds: whether it learns in rounds of sampled units, and so has ``training``.
        levels: whether its model takes ``reward_levels``.
        weights: whether its model takes the table's ``rows_per_unit``.
        hybrid: whether the marginals that it pre-trains on take it.
        public: whether it learns from the table's public ones first, and so needs some.
        batch: expected units of a round, at most.
        values: sections of the configuration.
    """

    method: str
    trajectories: bool = False
    rounds: bool = True
    levels: bool = True
    weights: bool = False
    hybrid: bool = False
    public: bool = False
    batch: int = LARGEST_BATCH
    values: Mapping[str, Any] = field(default_factory=dict)


_WITHOUT_PUBLIC_ROWS: Mapping[str, Any] = {"pretraining": {"steps": 0}}
_CORRELATIONS: Mapping[str, Any] = {
    "training": {"correlations_share": CORRELATIONS_SHARE},
}


def _hybrid(share: float) -> dict[str, Any]:
    """Return the settings of privorl_ar, pre-trained on marginals that have a share of epsilon."""
    pretraining = {"from": "marginals", "marginals": {"share": share}}
    return {
        "model": {"bins": 32, "hidden": [32]},
        "training": {"rounds": 400, "pretraining": pretraining},
    }


def _steps(pretraining: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of privorl_ar_j; a drawn fragment of a unit, not all, makes its vector."""
    training = {"rounds": 200, "all_fragments": False, "pretraining": pretraining}
    return {"model": {"horizon": 16}, "training": training}


def _pate_gan(
    teachers: int, *, votes: int = 16, teacher_steps: int = 4, **training: Any
) -> MethodSettings:
    """Return PATE-GAN with so many teachers and at most 300 steps of so many votes."""
    asked = {"votes_per_step": votes, "teacher_steps": teacher_steps, **training}
    return MethodSettings(
        method="pate_gan",
        rounds=False,
        values={"model": {"teachers": teachers}, "training": {"most_steps": 300, **asked}},
    )


PATE_GAN_TRIALS: Mapping[str, MethodSettings] = {
    "pate_gan_paper": _pate_gan(
        15, teacher_steps=10, noise="laplace", labels="majority", most_steps=1000
    ),
    "pate_gan_25": _pate_gan(25),
    "pate_gan_50": _pate_gan(50),
    "pate_gan_50_taught": _pate_gan(50, teacher_steps=10),
    "pate_gan_50_votes": _pate_gan(50, votes=64),
    "pate_gan_50_slow": _pate_gan(50, votes=64, generator_steps=2),
    "pate_gan_50_majority": _pate_gan(50, votes=64, labels="majority"),
}
"""What was tried beside ``pate_gan``, on a public maze (`EVAL_UMAZE`) alone: docs/pate_gan.md."""


def _hybrid_j(share: float) -> dict[str, Any]:
    """Return the same, pre-trained on marginals that have a share of epsilon."""
    return _steps({"from": "marginals", "marginals": {"share": share}})


METHODS: Mapping[str, MethodSettings] = {
    "privorl_ar": MethodSettings(  # docs/privorl_ar.md, "From your CSV"
        method="privorl_ar",
        values={
            "model": {"bins": 32, "hidden": [32]},
            "training": {"rounds": 400, **_WITHOUT_PUBLIC_ROWS},
        },
    ),
    "privorl_ar_j": MethodSettings(
        method="privorl_ar_j",
        trajectories=True,
        values=_steps(_WITHOUT_PUBLIC_ROWS["pretraining"]),
    ),
    "privorl_n": MethodSettings(  # the same rounds; the network of the mazes' table, narrower
        method="privorl_n",
        values={
            "model": {"width": 128, "depth": 3},
            "training": {"rounds": 400, **_WITHOUT_PUBLIC_ROWS},
        },
    ),
    "marginals": MethodSettings(method="marginals", rounds=False, levels=False, weights=True),
    "marginals_wide": MethodSettings(  # where a category has hundreds of values, such as a state
        method="marginals",
        rounds=False,
        levels=False,
        weights=True,
        values={"model": {"cells": 600_000, "model_cells": 2_000_000}},
    ),
    "marginals_changes": MethodSettings(  # what follows as a change, also without a simulator
        method="marginals",
        rounds=False,
        levels=False,
        weights=True,
        values={"model": {"next_observation": "difference"}},
    ),
    "marginals_j": MethodSettings(
        method="marginals_j", rounds=False, levels=False, trajectories=True, weights=True
    ),
    "marginals_correlations": MethodSettings(  # as `privrl init` drafts it for few columns
        method="marginals", rounds=False, levels=False, weights=True, values=_CORRELATIONS
    ),
    "marginals_j_correlations": MethodSettings(
        method="marginals_j",
        rounds=False,
        levels=False,
        trajectories=True,
        weights=True,
        values=_CORRELATIONS,
    ),
    "pgm": MethodSettings(method="pgm", rounds=False, levels=False, weights=True),
    "privsyn": MethodSettings(method="privsyn", rounds=False, levels=False, weights=True),
    "pate_gan": _pate_gan(100),  # a baseline; the paper's 15 teachers would answer 12 questions
    **PATE_GAN_TRIALS,
    "pre_pate_gan": MethodSettings(  # the same game, pre-trained as it is by default
        method="pre_pate_gan",
        rounds=False,
        public=True,
        values={
            "model": {"teachers": 100},
            "training": {"most_steps": 300, "teacher_steps": 4},
        },
    ),
    "dp_transformer": MethodSettings(  # fewer and smaller rounds, for want of CPU time
        method="dp_transformer",
        trajectories=True,
        batch=400,
        values={
            "training": {"rounds": 100, "all_fragments": False, **_WITHOUT_PUBLIC_ROWS},
        },
    ),
    "privorl_ar_public": MethodSettings(  # tune_configs/privorl_ar_maze2d.yaml, in 2,000 steps
        method="privorl_ar",
        public=True,
        values={"training": {"rounds": 400, "pretraining": {"steps": 2000}}},
    ),
    "hybrid": MethodSettings(method="privorl_ar", hybrid=True, values=_hybrid(0.5)),
    "hybrid_80": MethodSettings(method="privorl_ar", hybrid=True, values=_hybrid(0.8)),
    "hybrid_j": MethodSettings(
        method="privorl_ar_j", trajectories=True, hybrid=True, values=_hybrid_j(0.5)
    ),
    "hybrid_j_80": MethodSettings(
        method="privorl_ar_j", trajectories=True, hybrid=True, values=_hybrid_j(0.8)
    ),
}
"""By the name that cells have; those of a method that is not installed are not available."""

_QUICK_HYBRID: Mapping[str, Any] = {
    "model": {"bins": 8, "hidden": [8]},
    "training": {"rounds": 5, "pretraining": {"steps": 5}},
}
_QUICK_HYBRID_J: Mapping[str, Any] = {
    "model": {"horizon": 8},
    "training": {
        "rounds": 3,
        "pretraining": {"steps": 5, "marginals": {"trajectories": 100}},
    },
}
_QUICK_VOTES: Mapping[str, Any] = {"training": {"most_steps": 3, "noise_share": 4.0}}
QUICK: Mapping[str, Mapping[str, Any]] = {
    "privorl_ar": {"model": {"bins": 8, "hidden": [8]}, "training": {"rounds": 5}},
    "hybrid": _QUICK_HYBRID,
    "hybrid_80": _QUICK_HYBRID,
    "hybrid_j": _QUICK_HYBRID_J,
    "hybrid_j_80": _QUICK_HYBRID_J,
    "privorl_ar_j": {"model": {"horizon": 8}, "training": {"rounds": 3}},
    **dict.fromkeys(("pate_gan", *PATE_GAN_TRIALS), _QUICK_VOTES),
    "pre_pate_gan": {
        "training": {"most_steps": 3, "noise_share": 4.0, "pretraining": {"steps": 3}},
    },
    "dp_transformer": {"model": {"width": 8, "depth": 1}, "training": {"rounds": 3}},
    "privorl_ar_public": _QUICK_HYBRID,
    "privorl_n": {
        "model": {"width": 16, "depth": 1},
        "training": {"rounds": 5, "sampling": {"steps": 4}},
    },
}
"""What the quick scale changes."""


def check_available(name: str) -> MethodSettings:
    """Return a method's settings.

    Raises:
        ConfigError: nobody knows the name, or no installed package has the method.
    """
    if name not in METHODS:
        raise ConfigError(f"method {name!r} has no settings: choose from {', '.join(METHODS)}")
    settings = METHODS[name]
    if settings.method not in INSTALLED:
        raise ConfigError(
            f"method {name!r} is not available: no installed package offers {settings.method!r}"
        )
    return settings


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the sensitive dataset is, as published.

    Args:
        units: people.
        rows: transitions.
        trajectories: as such.
    """

    units: int
    rows: int
    trajectories: int


def run_values(
    name: str,
    table: BenchmarkTable,
    sizes: Sizes,
    *,
    dataset: str,
    output: str,
    public: Sequence[str] = (),
    epsilon: float | None,
    seed: int,
    bounds: Path,
    quick: bool,
) -> dict[str, Any]:
    """Return the configuration of one run.

    Args:
        name: a method of `METHODS`.
        table: what is protected.
        sizes: of the dataset.
        dataset: its id.
        output: id of the synthetic one.
        public: ids of the table's public ones, for methods that learn from them.
        epsilon: None: without privacy.
        seed: of public randomness.
        bounds: file of the table's bounds.
        quick: a handful of rounds.

    Raises:
        ConfigError: see `check_available`.
    """
    settings = check_available(name)
    size = sizes.trajectories if settings.trajectories else sizes.rows
    largest = max(1, round(LARGEST_RELEASE * sizes.trajectories / sizes.rows))
    values: dict[str, Any] = {
        "method": settings.method,
        "seed": seed,
        "data": {
            "sensitive": dataset,
            "unit": table.unit,
            "units": sizes.units,
            "max_length": table.unit_rows,
            "bounds": str(bounds.absolute()),
        },
        "privacy": {"epsilon": epsilon, "delta": delta_of(sizes.units)},
        "output": {
            "dataset": output,
            "size": min(size, largest if settings.trajectories else LARGEST_RELEASE),
        },
        "runtime": {"executor": "local", "workers": 1},
    }
    if settings.public:
        values["data"]["public"] = list(public)
    if table.environment is not None:
        values["data"]["environment"] = table.environment
    if settings.levels:
        values["model"] = {"reward_levels": list(table.reward_levels)}
    counted = {"rows_per_unit": table.rows_per_unit}
    if settings.trajectories and table.trajectories_per_unit is not None:
        counted["trajectories_per_unit"] = table.trajectories_per_unit
    if settings.weights:
        values["model"] = counted
    training: dict[str, Any] = {}
    if settings.trajectories:
        training["sampling"] = {"max_length": table.longest or table.unit_rows}
    if settings.hybrid:
        training["pretraining"] = {"marginals": {"table": counted}}
    if settings.rounds:
        training["expected_batch_size"] = min(settings.batch, max(1, sizes.units // 4))
    if training:
        values["training"] = training
    for part in (settings.values, QUICK.get(name, {}) if quick else {}):
        values = merged(values, part)
    return values


def delta_of(units: int) -> float:
    """Return a tenth of 1 / units, rounded down to a power of ten.

    Example:
        >>> delta_of(4043)
        1e-05
    """
    return float(f"1e-{math.ceil(math.log10(10 * units))}")
