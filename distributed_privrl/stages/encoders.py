"""The encoder of a run's rows: columns standardised by public facts or by bounds that were paid."""

from collections.abc import Iterable
from pathlib import Path

from distributed_privrl.core.config import DataConfig, NoisyBounds
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import (
    Bounds,
    bounds_from_environment,
    bounds_from_file,
    bounds_from_public,
)
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import scaling_from_bounds, scaling_from_public
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.bounding import quantile_release


def search_ranges(data: DataConfig, store: DatasetStore, *, relation: Relation) -> Bounds | None:
    """Return the public ranges in which bounds are to be found with noise, None if they are public.

    Raises:
        ConfigError: a column has no range, or ``data.bounds`` does not fit the columns.
    """
    asked = data.bounds
    if not isinstance(asked, NoisyBounds):
        return None
    info = store.info(data.sensitive)
    ranges = _bounds(asked.search, data, (info.observation_space, info.action_space))
    quantile_release(asked, ranges, relation=relation)
    return ranges


def check_bounds_named(data: DataConfig) -> None:
    """Check that a configuration says where the columns' bounds come from; opens nothing.

    Raises:
        ConfigError: it does not, or it names what is not there.
    """
    source = bounds_source(data)
    if source == "public" and not data.public:
        raise ConfigError("data.bounds=public needs data.public: name a public dataset")
    if isinstance(source, NoisyBounds):
        source = source.search
    if source == "environment" and data.environment is None:
        raise ConfigError(
            "the columns have no bounds: name data.public datasets, a data.environment, or a"
            " data.bounds file"
        )


def bounds_source(data: DataConfig) -> Path | NoisyBounds | str:
    """Return where the columns' bounds come from: as named, else public sets, else environment."""
    return data.bounds or ("public" if data.public else "environment")


def bounds_of(data: DataConfig, store: DatasetStore, found: Bounds | None = None) -> Bounds:
    """Return the bounds of the run's columns.

    Args:
        data: datasets and bounds.
        store: datasets.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.

    Raises:
        ConfigError: as `public_encoder`.

    Privacy: as `public_encoder`.
    """
    spaces = _spaces(data, store)
    source = bounds_source(data)
    if source == "public":
        return bounds_from_public(_public_chunks(data, store), *spaces)
    if isinstance(source, NoisyBounds):
        if found is None:
            raise ConfigError("data.bounds are to be found with noise: find and charge them first")
        return found
    return _bounds(source, data, spaces)


def public_encoder(
    data: DataConfig, store: DatasetStore, *, coding: RowCoding, found: Bounds | None = None
) -> TransitionEncoder:
    """Return the encoder of the run; its scaling knows public facts alone.

    Args:
        data: datasets and bounds.
        store: datasets.
        coding: of next observations, rewards and actions, from public facts.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.

    Raises:
        ConfigError: bounds are missing for a column, or public data hold a value that is not
            finite.

    Privacy: reads the sensitive dataset's spaces (declared, public), none of its rows; ``found``
    is post-processed.
    """
    spaces = _spaces(data, store)
    if bounds_source(data) == "public":
        scaling = scaling_from_public(_public_chunks(data, store), *spaces, coding=coding)
    else:
        scaling = scaling_from_bounds(bounds_of(data, store, found), *spaces, coding=coding)
    return TransitionEncoder(*spaces, scaling, coding)


def _spaces(data: DataConfig, store: DatasetStore) -> tuple[Space, Space]:
    """Return the sensitive dataset's spaces, which public ones share."""
    info = store.info(data.sensitive)
    return info.observation_space, info.action_space


def _public_chunks(data: DataConfig, store: DatasetStore) -> dict[str, Iterable[Transitions]]:
    check_bounds_named(data)
    return {name: store.iter_transitions(name, unit="transition") for name in data.public}


def _bounds(source: Path | str, data: DataConfig, spaces: tuple[Space, Space]) -> Bounds:
    if isinstance(source, Path):
        return bounds_from_file(source, *spaces)
    check_bounds_named(data)
    return bounds_from_environment(str(data.environment))
