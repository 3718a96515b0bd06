"""Strict configuration: frozen models, unknown keys refused."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.places import ObjectUri, is_uri, place_of
from distributed_privrl.core.problems import problems
from distributed_privrl.core.yaml_files import parse_yaml


class StrictModel(BaseModel):
    """Base of every configuration section: frozen, keyword-only, unknown keys are errors.

    A key that is no name in Python, such as ``from``, is the alias of its field: files, dumps and
    messages have the alias alone.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), serialize_by_alias=True
    )


def _dataset_id(value: str) -> str:
    try:
        return check_dataset_id("dataset id", value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


DatasetId = Annotated[str, AfterValidator(_dataset_id)]
PositiveInt = Annotated[int, Field(gt=0, le=10**11)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
"""Where accountants neither over- nor underflow, far beyond any use on both sides."""
LEAST_DELTA = 1e-50
Delta = Annotated[float, Field(ge=LEAST_DELTA, lt=1)]
MOST_MEASURES = 32
"""Histograms that a report may ask for."""
Probability = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class NoisyCount(StrictModel):
    """The number of units is not public: count it with discrete Laplace noise, and charge it."""

    epsilon: Epsilon = Field(description="epsilon spent on the count")


def _rising_quantiles(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not 0 < low < high < 1 or value != (round(low, 4), round(high, 4)):
        raise ValueError("must be two rising numbers in (0, 1), with four decimals at most")
    return value


def _bounds_place(value: Any) -> Any:
    """Return a URI of bounds as the place that it names."""
    return place_of("data.bounds", value) if is_uri(value) else value


class NoisyBounds(StrictModel):
    """The columns' bounds are not public: find quantiles by noisy choices, and charge them."""

    epsilon: Epsilon = Field(description="epsilon spent on all quantiles of all columns")
    search: Annotated[
        Path | ObjectUri | Literal["environment"],
        BeforeValidator(_bounds_place),
        Field(
            description="public ranges to search in: a YAML file as for bounds, or the"
            " environment's"
        ),
    ]
    quantiles: Annotated[tuple[float, float], AfterValidator(_rising_quantiles)] = Field(
        default=(0.05, 0.95), description="taken as bounds; four decimals at most"
    )
    parts: Annotated[
        tuple[Literal["observation", "action", "reward"], ...], Field(min_length=1)
    ] = Field(
        default=("observation", "action", "reward"),
        description="which columns; the range of another part is its bound",
    )


class DataConfig(StrictModel):
    """What the run reads."""

    sensitive: DatasetId = Field(description="id of the sensitive dataset")
    public: tuple[DatasetId, ...] = Field(
        default=(), description="ids of public datasets: pre-training and statistics"
    )
    unit: str = Field(
        description="what one person contributes: transition, trajectory, document or a column's"
        " name"
    )
    units: PositiveInt | NoisyCount | None = Field(
        default=None, description="number of units, if public; {epsilon: E} counts them privately"
    )
    max_length: PositiveInt | None = Field(
        default=None, description="public cap on the rows of a unit; further ones are left out"
    )
    bounds: Annotated[
        Path | ObjectUri | Literal["environment", "public"] | NoisyBounds | None,
        BeforeValidator(_bounds_place),
    ] = Field(
        default=None,
        description="bounds of every column: a YAML file (path or URI), the environment's spaces,"
        " or the public sets' (default: the public sets if there are any, else the environment);"
        " {epsilon: E, search: FILE} finds them privately",
    )
    environment: str | None = Field(default=None, description="Gymnasium id of the environment")


DELTA_RULE = "a tenth of 1/units or less: 1e-5 for up to 10,000 units"
"""How people choose a delta, in words."""


def _zero_or_delta(value: float) -> float:
    if 0 < value < LEAST_DELTA:
        raise ValueError(f"must be 0, or at least {LEAST_DELTA}")
    return value


class PrivacyConfig(StrictModel):
    """What the run may cost."""

    epsilon: Epsilon | None = Field(
        description="upper bound on epsilon; null trains without privacy (status non_private)"
    )
    delta: Delta = Field(description=f"upper bound on delta; {DELTA_RULE}")
    accountant: Literal["pld", "rdp"] = Field(default="pld", description="accountant that decides")
    relation: Literal["replace_with_null", "add_or_remove", "replace_one"] = Field(
        default="replace_with_null", description="what neighbouring datasets are"
    )


class ReleasePrivacyConfig(PrivacyConfig):
    """What a run of plain releases may cost: statistics of all units, no sampling."""

    delta: Annotated[float, Field(ge=0, lt=1), AfterValidator(_zero_or_delta)] = Field(
        description=f"upper bound on delta; {DELTA_RULE}; 0: pure differential privacy, by Laplace"
        " noise alone"
    )
    relation: Literal["replace_with_null", "add_or_remove", "replace_one"] = Field(
        default="replace_one", description="what neighbouring datasets are"
    )


class OutputConfig(StrictModel):
    """What the run releases."""

    COUNTED: ClassVar[str | None] = "rows"
    """What ``size`` counts."""

    dataset: DatasetId = Field(description="id of the synthetic dataset")
    size: PositiveInt = Field(description="synthetic transitions (or trajectories)")
    layout: Literal["transitions", "episodes"] = Field(
        default="transitions",
        description="transitions: packed, next observation in infos; episodes: one step each",
    )
    author: tuple[str, ...] = Field(
        default=(), description="names of who answers for the release, in its metadata and card"
    )
    author_email: tuple[str, ...] = Field(default=(), description="where to reach them")
    code_permalink: str | None = Field(
        default=None, description="address of the code or configuration that made the release"
    )

    @property
    def datasets(self) -> tuple[str, ...]:
        """Ids of the datasets that are written: the release."""
        return (self.dataset,)

    def signed(self) -> dict[str, Any]:
        """Return what is declared of who made the release, in Minari's keys."""
        found = self.model_dump(mode="json", include={"author", "author_email", "code_permalink"})
        return {key: value for key, value in found.items() if value}


class TrajectoryOutputConfig(OutputConfig):
    """The trajectories that the run releases."""

    COUNTED: ClassVar[str | None] = "trajectories"

    size: PositiveInt = Field(description="synthetic trajectories")
    layout: Literal["episodes"] = Field(
        default="episodes", description="a Minari episode for each trajectory"
    )


class FilesOutputConfig(StrictModel):
    """Files that a run releases in its own folder."""

    COUNTED: ClassVar[str | None] = None
    """Their number is fixed."""
    about: ClassVar[str] = "a policy learned from"
    """What they are of the sensitive dataset, for titles."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files that are released, the one that the run is for first."""
        return ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """Ids of the datasets that are written beside them."""
        return ()


class PolicyOutputConfig(FilesOutputConfig):
    """What a run that learns a policy releases."""

    policy: Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.safetensors$")] = Field(
        default="policy.safetensors", description="file of the policy in the run's folder"
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files that are released, the policy first."""
        return (self.policy,)


class EventConfig(StrictModel):
    """A rare event: what a column holds in some rows."""

    column: str = Field(description="name of the column, as reports have it")
    value: str | bool | int | float | None = Field(
        default=None, description="of a category or flag"
    )
    at_least: float | None = Field(default=None, description="of a number")
    below: float | None = Field(default=None, description="of a number")

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        between = self.at_least is not None or self.below is not None
        if (self.value is not None) == between:
            raise ValueError("name a value, or at_least and below, or one of these")
        if None not in (self.at_least, self.below) and self.at_least >= self.below:  # type: ignore[operator]
            raise ValueError("at_least must be less than below")
        return self


class MeasuresConfig(StrictModel):
    """Noisy counts of the sensitive rows that the public report holds the release against."""

    epsilon: Epsilon = Field(description="epsilon spent on all of them, pure")
    pairs: tuple[tuple[str, str], ...] = Field(
        default=(), description="pairs of columns that are counted together, e.g. [[age, dose]]"
    )
    events: tuple[EventConfig, ...] = Field(default=(), description="rare events")
    bins: Annotated[int, Field(ge=2, le=32)] = Field(
        default=6, description="cells of a number, of equal width within its bounds"
    )
    edges: dict[str, tuple[float, ...]] = Field(
        default_factory=dict, description="inner edges of a number's cells instead, by its column"
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.pairs or self.events):
            raise ValueError("name pairs or events")
        if len(self.pairs) + len(self.events) > MOST_MEASURES:
            raise ValueError(f"at most {MOST_MEASURES} pairs and events: noise grows with each")
        return self


class EvaluationConfig(StrictModel):
    """Agents trained on the synthetic data after the run; empty trainers: none."""

    trainers: tuple[str, ...] = Field(default=(), description="e.g. [iql]")
    seeds: PositiveInt = Field(default=1, description="training seeds an agent")
    steps: PositiveInt = Field(default=500_000, description="gradient steps an agent")
    episodes: PositiveInt = Field(default=10, description="evaluation episodes at each evaluation")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="an agent's settings, e.g. {iql: {beta: 10}}"
    )
    measures: MeasuresConfig | None = Field(
        default=None,
        description="what the public report says of how near the release is to the sensitive rows,"
        " measured with noise and charged",
    )


def summing_processes(workers: int, fan_in: int) -> int:
    """Return how many processes add up the sums of workers on the way to the server; 0: none."""
    return 0 if workers <= fan_in else math.isqrt(workers - 1) + 1


class WorkerRange(StrictModel):
    """How many workers a run on a cluster may have; it takes what comes and gives up what goes."""

    min: PositiveInt = Field(description="workers that a run begins with, and always waits for")
    max: PositiveInt = Field(description="workers that a run asks for")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class RuntimeConfig(StrictModel):
    """Where the run happens; nothing here changes its result's distribution."""

    workers: PositiveInt | WorkerRange = Field(
        default=2,
        description="local update workers; `{min: 2, max: 16}`: as many as a cluster has for them",
    )
    blocks: PositiveInt | None = Field(
        default=None,
        description="parts that units are divided into, whoever computes them; as many as workers"
        " at least (default: by the batch, 4 to 64)",
    )
    fan_in: Annotated[int, Field(ge=2)] = Field(
        default=32,
        description="up to so many workers answer the server of private rounds themselves; for"
        " more, processes in between add up",
    )
    executor: Literal["ray", "local"] = Field(
        default="ray", description="local: no Ray, one process"
    )
    cpus_per_worker: PositiveFloat = Field(default=1.0, description="logical CPUs a worker")
    gpus_per_worker: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="GPUs a worker computes on"
    )
    micro_batch_rows: PositiveInt | None = Field(
        default=None,
        description="rows whose gradients are computed at once; bounds memory (default: the"
        " method's, 512 rows or 32 fragments)",
    )
    pretrained: Path | None = Field(
        default=None,
        description="folder where finished pre-trainings are kept and found again by runs with the"
        " same public data, model, settings and seed; not where `data.bounds` are found with noise,"
        " or rows are drawn from marginals",
    )
    checkpoint_steps: PositiveInt = Field(
        default=2000,
        description="gradient steps between checkpoints of a policy that learns in a model",
    )
    recovery_seconds: PositiveFloat = Field(
        default=120.0,
        description="how long a process that died may take to be built again, from when it is"
        " missed; a new node of a cloud takes minutes",
    )
    wait_seconds: PositiveFloat = Field(
        default=86400.0,
        description="how long a run may wait for CPUs or GPUs that others hold",
    )

    @model_validator(mode="after")
    def _check_least(self) -> Self:
        needed = summing_processes(self.most_workers, self.fan_in)
        if self.least_workers < needed:
            raise ValueError(
                f"workers.max={self.most_workers} is above fan_in={self.fan_in}, so the sums are"
                f" added up in {needed} groups, and each needs a worker: raise workers.min to"
                f" {needed}"
            )
        return self

    @property
    def least_workers(self) -> int:
        """Workers that the run begins with."""
        return self.workers.min if isinstance(self.workers, WorkerRange) else self.workers

    @property
    def most_workers(self) -> int:
        """Parts of the work: as many workers as the run may have."""
        return self.workers.max if isinstance(self.workers, WorkerRange) else self.workers


class RunConfig(StrictModel):
    """Everything a run needs; a method narrows ``model``, ``training`` and ``output``."""

    method: str = Field(description="name of the method")
    seed: int = Field(default=0, description="seed of public randomness only")
    data: DataConfig
    privacy: PrivacyConfig
    model: StrictModel
    training: StrictModel
    output: OutputConfig | FilesOutputConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def releases(self) -> tuple[str, ...]:
        """Ids of datasets that were released before, and that the run learns from without noise."""
        return ()


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``values`` with dotted overrides applied.

    Args:
        values: nested configuration.
        overrides: ``path.to.key=value`` with YAML values.

    Raises:
        ConfigError: an override has no ``=``, or goes through something that is no section.

    Example:
        >>> with_overrides({"privacy": {"epsilon": 1}}, ["privacy.epsilon=2.5"])
        {'privacy': {'epsilon': 2.5}}
    """
    result: dict[str, Any] = {**values}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise ConfigError(f"override {override!r} must look like section.key=value")
        *sections, key = path.split(".")
        target = result
        for section in sections:
            inner = target.get(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"override {override!r}: {section} is no section")
            target[section] = target = {**inner}
        target[key] = parse_yaml(text, source=f"override {override!r}")
    return result


ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], values: Mapping[str, Any], *, source: str) -> ModelT:
    """Return ``values`` as a ``model``.

    Raises:
        ConfigError: one line that lists each wrong or unknown key with what it should be.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(problems(model, error))}") from error
