"""What a dataset's metadata.json says, in plain Minari's keys and one of ours."""

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.sensitive import Purpose, Sensitive
from distributed_privrl.data.declared import NO_GAPS, DeclaredTable, Gaps
from distributed_privrl.data.kept import Kept, Order
from distributed_privrl.data.spaces import Space, space_from_json, space_to_json, supported_space

FILE_NAME = "metadata.json"
CERTIFICATE_KEY = "privacy_certificate"
"""Where a released dataset keeps its certificate."""
PUBLIC_KEY = "declared_public"
"""True where who made the dataset said that its rows are nobody's secret; never inferred."""
SEAM_KEY = "seam_error"
"""How far apart neighbouring steps of synthetic trajectories were before they were joined."""
SUPPORT_KEY = "support"
"""Cells of the support that synthetic trajectories keep to, and how many of them do not."""
DRIFT_KEY = "drift"
"""How all steps of synthetic trajectories differ from the rows that were counted, by column."""
COLLECTION_KEY = "collection"
"""How a recipe simulated the rows; nobody is called as their units are."""
SPLIT_KEY = "split_of"
"""Ids of the datasets that a side of a split comes from, the first one first."""
SIDES_KEY = "split_into"
"""Ids of the sides that were ever split from a dataset; a side has its own and its other side's."""
NUMBERED_KEY = "split_by_position"
"""True where units were told apart by their position: without one, the others change sides."""
Kind = Literal["trajectories", "transitions"]
Layout = Literal["transitions", "episodes", "packed"]

_OURS = "distributed_privrl"
_RESERVED = frozenset(
    {
        *("dataset_id", "data_format", "jpeg_encoding", "minari_version", "observation_space"),
        *("action_space", "env_spec", "total_steps", "total_episodes", "dataset_size", _OURS),
    }
)
_SUCCESSOR = (
    "the successor of observations[t] is infos['next_observation'][t], never observations[t + 1]."
)
_NO_SUCCESSOR = (
    "Rows that nothing follows, packed in one episode: each is terminated, and"
    " infos['next_observation'] repeats its observation."
)
_DESCRIPTIONS = {
    "transitions": "Independent transitions packed in one episode: the step after row t is"
    f" unrelated to row t, and {_SUCCESSOR}",
    "packed": "Trajectories packed in one episode: each ends at a row that is terminated or"
    f" truncated, the next row begins another one, and {_SUCCESSOR}",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DatasetInfo:
    """What is known of a stored dataset without reading its rows.

    Public by declaration, and plain: what whoever imports, collects or configures a dataset states
    beforehand and no row decides, namely its id, kind and layout, the two spaces, whether anything
    follows a row, what a schema declares of a table's columns, the environment's id and the unit
    column's name. A run's release has the same spaces and columns; its encoders and networks are
    built from them.

    All else is `Sensitive`, of every dataset: how many rows and trajectories there are, and what a
    recipe, an importer or a stranger wrote into the metadata (returns, lengths, ranges, texts).
    Marks that decide who may use a dataset (`declared_public`, `certificate`, sides of a split) are
    read here for that alone.

    Args:
        id: ``[namespace/]name-vN``.
        kind: trajectories, or independent transitions.
        layout: of the Minari file: ``transitions`` or ``packed`` (trajectories), all in one
            episode, or ``episodes``.
        observation_space: Box, Discrete or MultiDiscrete (a Dict of Boxes shows as one flat Box).
        action_space: Box, Discrete or MultiDiscrete.
        total_steps: number of transitions.
        total_trajectories: number of trajectories; 0 for independent transitions.
        environment: Gymnasium id, if known.
        unit_column: name of the source column that the unit ids come from, if any.
        declared: what the schema of its table said of the columns; None: it came from no table.
        has_successors: whether something follows a row; otherwise each is terminated, and its next
            observation repeats its own.
        metadata: what the writer added, e.g. ``privacy_certificate``.
    """

    id: str
    kind: Kind
    layout: Layout
    observation_space: Space
    action_space: Space
    total_steps: Sensitive[int]
    total_trajectories: Sensitive[int]
    environment: str | None
    unit_column: str | None
    declared: DeclaredTable | None
    has_successors: bool
    metadata: Sensitive[Mapping[str, Any]]

    @property
    def lasting(self) -> tuple[int, ...]:
        """Places of the observation's numbers, or categories, that stay for a whole trajectory."""
        if self.declared is None or not self.has_successors:
            return ()
        space = self.observation_space
        held = isinstance(space, gymnasium.spaces.Box)
        return self.declared.lasting(held=held) if space.shape else ()

    @property
    def rising(self) -> tuple[int, ...]:
        """Places of the observation's numbers that never fall: declared, or what sorts the rows."""
        if self.declared is None or not self.has_successors or not self.observation_space.shape:
            return ()
        held = isinstance(self.observation_space, gymnasium.spaces.Box)
        return self.declared.rising(held=held)

    @property
    def gaps(self) -> Gaps:
        """Which numbers of observations and actions have an indicator beside them, as declared."""
        if self.declared is None:
            return NO_GAPS
        found, spaces = self.declared.gaps, (self.observation_space, self.action_space)
        held = (isinstance(space, gymnasium.spaces.Box) for space in spaces)
        return Gaps(*(one if own else () for one, own in zip(found, held, strict=True)))

    @property
    def orders(self) -> tuple[Order, ...]:
        """Which numbers of an observation are never above others, as declared."""
        space = self.observation_space
        if self.declared is None or not space.shape:
            return ()
        held = isinstance(space, gymnasium.spaces.Box)
        return tuple(self.declared.orders(held=held).values())

    @property
    def kept(self) -> Kept:
        """What the rows of any release do, as declared."""
        return Kept(lasting=self.lasting, rising=self.rising, orders=self.orders)

    @property
    def has_action(self) -> bool:
        """Whether rows have an action; otherwise each has the one category of its space."""
        return self.declared is None or self.declared.columns.has_action

    @property
    def has_reward(self) -> bool:
        """Whether rows have a reward; otherwise each is 0."""
        return self.declared is None or self.declared.columns.has_reward

    @property
    def last_rows_copied(self) -> bool:
        """Whether what follows a terminating row was in no table, and repeats its observation."""
        return self.declared is not None and not self.declared.columns.following

    @property
    def has_table(self) -> bool:
        """Whether the rows lie in a Parquet table, and the Minari file repeats them."""
        return self.kind == "transitions" or self.layout == "packed"

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate that the dataset was released with; empty if there is none."""
        found = self._mark(CERTIFICATE_KEY)
        return found if isinstance(found, Mapping) else {}

    @property
    def declared_public(self) -> bool:
        """Whether who made it said that its rows are nobody's secret."""
        return self._mark(PUBLIC_KEY) is True

    @property
    def names_units(self) -> bool:
        """Whether a unit's id is somebody's name, not a number that a simulation counted."""
        return self.unit_column is not None and self._mark(COLLECTION_KEY) is None

    @property
    def split_of(self) -> tuple[str, ...]:
        """Ids of the datasets that it is a part of; empty unless `split` made it."""
        return self._ids(SPLIT_KEY)

    @property
    def split_into(self) -> tuple[str, ...]:
        """Ids of the sides that were split from it or beside it, whether they are still there."""
        return self._ids(SIDES_KEY)

    def _ids(self, key: str) -> tuple[str, ...]:
        found = self._mark(key)
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def _mark(self, key: str) -> Any:
        return self.metadata.open(Purpose.CHECK).get(key)

    @property
    def split_by_position(self) -> bool:
        """Whether the position of a unit decided on which side of a split it came."""
        return self._mark(NUMBERED_KEY) is True

    @property
    def may_leave(self) -> bool:
        """Whether the metadata say that it is released or public; decides file modes alone.

        Nothing here looks at the rows: what lets rows go is ``experiments.clearance``.
        """
        return self.declared_public or self.certificate.get("status") == "valid"


def check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller wants to add to the metadata, if it may be added.

    Raises:
        ConfigError: a key that describes the file's structure, or a value that is not JSON.
    """
    reserved = sorted(_RESERVED.intersection(metadata))
    if reserved:
        raise ConfigError(f"metadata keys {', '.join(reserved)} are set by the writer: rename them")
    try:
        json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata must be JSON values: {error}") from error
    return dict(metadata)


def build_metadata(info: DatasetInfo, *, episodes: int, size_megabytes: float) -> dict[str, Any]:
    """Return the content of metadata.json for a new dataset."""
    packed = info.layout in _DESCRIPTIONS
    given = info.metadata.open(Purpose.STORAGE)
    form = _DESCRIPTIONS.get(info.layout, "") if info.has_successors else _NO_SUCCESSOR
    description = [str(given.get("description", "")), form]
    declared = info.declared
    values = {
        **given,
        "dataset_id": info.id,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "minari_version": importlib.metadata.version("minari"),
        "observation_space": space_to_json(info.observation_space),
        "action_space": space_to_json(info.action_space),
        "total_steps": info.total_steps.open(Purpose.STORAGE),
        "total_episodes": episodes,
        "dataset_size": round(size_megabytes, 1),
        "description": " ".join(part for part in description if part),
        _OURS: {
            "kind": info.kind,
            "layout": info.layout,
            "total_trajectories": info.total_trajectories.open(Purpose.STORAGE),
            "unit_column": info.unit_column,
            "environment": info.environment,
            "next_observation": "infos/next_observation" if packed else "observations",
            "has_successors": info.has_successors,
            **({} if declared is None else {"declared": declared.model_dump(mode="json")}),
        },
    }
    specification = _environment_json(info.environment)
    return values if specification is None else {**values, "env_spec": specification}


def read_values(folder: Path) -> dict[str, Any]:
    """Return the content of metadata.json in a dataset's data folder.

    Raises:
        StorageError: it cannot be read.
    """
    path = folder / FILE_NAME
    with storage_errors(f"read {path}"):
        content = path.read_bytes()
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(folder, error) from None


def stored_spaces(
    values: Mapping[str, Any], folder: Path
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the observation and action space as stored, from the environment if need be.

    Raises:
        ConfigError: neither the metadata nor the environment give them.
    """
    names = ("observation_space", "action_space")
    if all(name in values for name in names):
        return space_from_json(values[names[0]]), space_from_json(values[names[1]])
    from minari.dataset.minari_storage import MinariStorage

    try:
        storage = MinariStorage.read(folder)
    except Exception as error:  # its words may quote what the metadata say
        raise ConfigError(
            f"{folder / FILE_NAME} names no spaces and its environment gives none:"
            f" {type(error).__name__}"
        ) from None
    return storage.observation_space, storage.action_space


def info_of(dataset: str, values: Mapping[str, Any], folder: Path) -> DatasetInfo:
    """Return what ``values`` say; plain Minari's sets count as trajectories.

    Raises:
        ConfigError: a data format or space that is not supported.
        StorageError: a key is missing, or its value is of another kind.
    """
    if values.get("data_format", "hdf5") != "hdf5":
        raise ConfigError(
            f"dataset {dataset!r} is stored as {values['data_format']}: write it with Minari's"
            " data_format='hdf5'"
        )
    observation_space, action_space = stored_spaces(values, folder)
    try:
        ours = values.get(_OURS, {})
        kind = ours.get("kind", "trajectories")
        trajectories = 0 if kind == "transitions" else int(values["total_episodes"])
        return DatasetInfo(
            id=dataset,
            kind=kind,
            layout=ours.get("layout", "episodes"),
            observation_space=supported_space(f"{dataset} observations", observation_space),
            action_space=supported_space(f"{dataset} actions", action_space),
            total_steps=Sensitive(int(values["total_steps"])),
            total_trajectories=Sensitive(int(ours.get("total_trajectories", trajectories))),
            environment=ours.get("environment") or _environment_id(values.get("env_spec")),
            unit_column=ours.get("unit_column"),
            declared=_declared(ours.get("declared"), folder),
            has_successors=bool(ours.get("has_successors", True)),
            metadata=Sensitive(
                {key: value for key, value in values.items() if key not in _RESERVED}
            ),
        )
    except KeyError as error:
        raise StorageError(f"{folder / FILE_NAME} lacks {error}: write the dataset again") from None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Path, error: Exception) -> StorageError:
    """Return a refusal of metadata.

    Privacy: it has none of the error's words, nor the error as its cause. They quote values, and
    what a sensitive dataset says of itself would stand in the logs of a job.
    """
    if isinstance(error, json.JSONDecodeError):
        reason = f"no JSON in line {error.lineno}, column {error.colno}"
    else:
        reason = f"{type(error).__name__}: a value is of another kind than it should be"
    return StorageError(f"{folder / FILE_NAME} is damaged ({reason}): restore it or write it again")


def _declared(values: Any, folder: Path) -> DeclaredTable | None:
    if values is None:
        return None
    return validate(DeclaredTable, values, source=str(folder / FILE_NAME))


def _environment_json(environment: str | None) -> str | None:
    """Return the environment's specification, if it is registered and can be written down."""
    if environment is None:
        return None
    try:
        return gymnasium.spec(environment).to_json()
    except (gymnasium.error.Error, TypeError, ValueError, ImportError):
        return None


def _environment_id(specification: str | None) -> str | None:
    return None if specification is None else str(json.loads(specification)["id"])
