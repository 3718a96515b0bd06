"""A sweep's file: a run's configuration, what is searched in it, and who pays for the choice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, FiniteFloat, TypeAdapter, model_validator

from distributed_privrl.core.config import (
    DatasetId,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    StrictModel,
    validate,
    with_overrides,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.experiments.registry import method_named, parse_config
from distributed_privrl.experiments.sweeps.private import check_private
from distributed_privrl.privacy.repetitions import TrialCount

SEARCH, SELECTION = "search", "selection"
_FIXED = ("method", "data.sensitive", "output.dataset", "runtime")
"""What no axis may change: names, and where a trial runs."""


class Axis(StrictModel):
    """The values of one key of the configuration; one of the kinds below."""

    grid: Annotated[tuple[Any, ...], Field(min_length=1)] | None = Field(
        default=None, description="each value, with each value of the other grids"
    )
    choice: Annotated[tuple[Any, ...], Field(min_length=1)] | None = Field(
        default=None, description="drawn evenly"
    )
    uniform: tuple[FiniteFloat, FiniteFloat] | None = Field(
        default=None, description="drawn evenly between two numbers"
    )
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = Field(
        default=None, description="drawn evenly between two numbers by their logarithms"
    )
    integers: tuple[int, int] | None = Field(
        default=None, description="drawn evenly from the first to the last"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"give one of {names}")
        ends = self.uniform or self.log_uniform or self.integers
        if ends is not None and not ends[0] < ends[1]:
            raise ValueError("needs two rising numbers")
        return self

    def draw(self, random: np.random.Generator) -> Any:
        """Return a value; of a grid, one of its values drawn evenly."""
        if (values := self.grid or self.choice) is not None:
            return values[int(random.integers(len(values)))]
        if self.integers is not None:
            low, high = self.integers
            return int(random.integers(low, high, endpoint=True))
        if self.uniform is not None:
            return float(random.uniform(*self.uniform))
        assert self.log_uniform is not None
        return float(np.exp(random.uniform(*np.log(self.log_uniform))))

    @property
    def corners(self) -> tuple[Any, ...]:
        """The values that there are, or both ends of what is drawn between."""
        listed = self.grid or self.choice
        ends = self.uniform or self.log_uniform or self.integers
        return tuple(listed or ends or ())


class ScoreConfig(StrictModel):
    """What tells a good trial; computed from what the trial releases and from public things."""

    by: Literal["agents", "policy", "fidelity"] = Field(
        description="agents: mean return of an agent trained on the release, normalised where"
        " there are references; policy: what a released policy is worth in data.environment,"
        " exactly where it has a model; fidelity: likeness to public rows"
    )
    trainer: str | None = Field(
        default=None, description="of the agent (default: the first of evaluation.trainers)"
    )
    to: DatasetId | None = Field(
        default=None, description="id of public rows, for fidelity (default: the first of public)"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.trainer is not None and self.by != "agents":
            raise ValueError("trainer goes with by: agents")
        if self.to is not None and self.by != "fidelity":
            raise ValueError("to goes with by: fidelity")
        return self


class _Selection(StrictModel):
    score: ScoreConfig


class _Shown(_Selection):
    """A selection whose trials are all seen."""

    trials: PositiveInt = Field(
        default=1, description="draws of the axes that are no grids, for each point of the grids"
    )
    concurrent: PositiveInt | None = Field(
        default=None, description="trials at a time (default: as many as fit)"
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        default=2, description="how often a trial whose process died goes on by itself"
    )


class PublicSelection(_Shown):
    """Public rows stand in for the sensitive ones: nothing is paid, nothing is protected."""

    pays: Literal["public"] = Field(description="nobody: public rows stand in")
    stand_in: DatasetId = Field(
        description="id of a dataset declared public, in the form of data.sensitive"
    )
    environment: str | None = Field(
        default=None, description="of the stand-in (default: what it was stored with)"
    )
    trackers: tuple[Literal["wandb", "mlflow"], ...] = Field(
        default=(), description="also told of every trial: they may be elsewhere"
    )


class ComposedSelection(_Shown):
    """Every trial reads the sensitive rows, is charged and is released."""

    pays: Literal["compose"] = Field(description="the sensitive dataset, for each trial")


_SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}


class NegativeBinomial(StrictModel):
    """A truncated negative binomial law of the number of trials."""

    shape: Annotated[float, Field(ge=0, le=100)] = Field(description="1: geometric, 0: logarithmic")


class PrivateSelection(_Selection):
    """The best of a hidden number of trials is released, for one charge.

    Reference: Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy" (2022).
    """

    pays: Literal["private"] = Field(description="the sensitive dataset, once for all trials")
    law: Literal["geometric", "logarithmic", "poisson"] | NegativeBinomial = Field(
        description="of the number of trials, which nobody learns; or {shape: S}, of a truncated"
        " negative binomial law"
    )
    mean: Annotated[float, Field(gt=1, le=10_000)] = Field(
        description="mean number of trials; what they take is not known before"
    )
    actors: PositiveInt = Field(default=2, description="processes, a constant number")

    @property
    def count(self) -> TrialCount:
        """The law of the number of trials."""
        if isinstance(self.law, NegativeBinomial):
            return TrialCount(self.mean, self.law.shape)
        return TrialCount(self.mean, _SHAPES[self.law])


Selection = PublicSelection | ComposedSelection | PrivateSelection
_KINDS: dict[str, type[_Selection]] = {
    "public": PublicSelection,
    "compose": ComposedSelection,
    "private": PrivateSelection,
}
_AXES: TypeAdapter[dict[str, Axis]] = TypeAdapter(dict[str, Axis])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as its file says it.

    Args:
        values: of the run, without what is searched.
        base: the run with the first value of each axis.
        search: axes by the dotted path of their key.
        selection: who pays, and how a winner is found.
        source: of the file, for messages.
    """

    values: Mapping[str, Any]
    base: RunConfig
    search: Mapping[str, Axis]
    selection: Selection
    source: str

    def config_of(self, point: Mapping[str, Any]) -> RunConfig:
        """Return the run at a point of the search.

        Args:
            point: a value for each axis.

        Raises:
            ConfigError: the run's configuration does not take one.
        """
        return parse_config(self.values, source=self.source, overrides=overrides_of(point))

    def to_json(self) -> dict[str, Any]:
        """Return what the file says, as JSON values."""
        return {
            **self.values,
            SEARCH: {
                path: axis.model_dump(exclude_none=True) for path, axis in self.search.items()
            },
            SELECTION: self.selection.model_dump(mode="json"),
        }


def overrides_of(point: Mapping[str, Any]) -> list[str]:
    """Return a point of the search as ``path=value``."""
    return [f"{path}={json.dumps(value)}" for path, value in point.items()]


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a YAML file.

    Args:
        path: of the file: a run's configuration with ``search`` and ``selection``.
        overrides: ``section.key=value``.

    Raises:
        ConfigError: the file is missing or wrong, or says nothing of who pays.
        UnsafeError: a private selection with an axis that it cannot cover.
    """
    source = str(path)
    values = with_overrides(read_yaml(path), overrides)
    search = _search(values.pop(SEARCH, None), source)
    selection = _selection(values.pop(SELECTION, None), source)
    sweep = Sweep(
        values=values,
        base=parse_config(
            values,
            source=source,
            overrides=overrides_of({key: axis.corners[0] for key, axis in search.items()}),
        ),
        search=search,
        selection=selection,
        source=source,
    )
    for key, axis in search.items():
        for corner in axis.corners:
            first = {other: one.corners[0] for other, one in search.items()}
            sweep.config_of(first | {key: corner})
    if isinstance(selection, PrivateSelection):
        grids = [key for key, axis in search.items() if axis.grid is not None]
        check_private(sweep.base, axes=search, grids=grids)
    _check_score(sweep)
    return sweep


def _search(values: Any, source: str) -> dict[str, Axis]:
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(
            f"{source}: 'search' is missing: name keys and their values, such as"
            " {privacy.epsilon: {grid: [1, 5, 10]}}"
        )
    for key in values:
        if any(
            key == fixed or key.startswith(f"{fixed}.") or fixed.startswith(f"{key}.")
            for fixed in _FIXED
        ):
            raise ConfigError(f"{source}: {key} is not searched: it is the same in all trials")
    return {
        key: validate(Axis, axis, source=f"{source}: search.{key}") for key, axis in values.items()
    }


def _selection(values: Any, source: str) -> Any:
    pays = values.get("pays") if isinstance(values, Mapping) else None
    if pays not in _KINDS:
        raise ConfigError(
            f"{source}: 'selection.pays' must say who pays for the choice: public (rows of nobody"
            " stand in), compose (every trial is charged and released), or private (the best of a"
            " hidden number of trials, for one charge)"
        )
    return validate(_KINDS[pays], values, source=f"{source}: selection")


def _check_score(sweep: Sweep) -> None:
    score, config = sweep.selection.score, sweep.base
    released = config.output.COUNTED is not None
    if score.by == "policy":
        if released:
            raise ConfigError(
                f"selection.score: {config.method} releases rows: by agents or fidelity"
            )
        if method_named(config.method).inspection.headline is None:
            raise ConfigError(
                f"selection.score: {config.method} has no public figure of what it releases"
            )
        if config.data.environment is None:
            raise ConfigError("selection.score: by policy needs data.environment, to try it in")
        return
    if not released:
        raise ConfigError(f"selection.score: {config.method} releases a policy: by: policy")
    if score.by == "agents":
        trainers = config.evaluation.trainers
        if not trainers:
            raise ConfigError("selection.score: by agents needs evaluation.trainers, e.g. [iql]")
        if score.trainer is not None and score.trainer not in trainers:
            raise ConfigError(
                f"selection.score.trainer={score.trainer} is not among evaluation.trainers"
                f" ({', '.join(trainers)})"
            )
    elif score.to is None and not config.data.public:
        public = isinstance(sweep.selection, PublicSelection)
        if not public:
            raise ConfigError(
                "selection.score: by fidelity needs public rows: name them as data.public or as to"
            )
