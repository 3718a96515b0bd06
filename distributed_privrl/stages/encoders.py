"""The encoder of a run's rows: columns standardised by public facts or by bounds that were paid."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.config import DataConfig, NoisyBounds
from distributed_privrl.core.errors import ConfigError, PrivRLError
from distributed_privrl.core.places import Place
from distributed_privrl.data.bounds import (
    Bounds,
    bounded_columns,
    bounds_a_reward,
    bounds_from_environment,
    bounds_from_file,
    bounds_from_public,
    check_bounds_file,
)
from distributed_privrl.data.declared import NO_GAPS, Gaps
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.labels import part_names
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.scaling import scaling_from_bounds, scaling_from_public
from distributed_privrl.data.spaces import Space, environment_spaces
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
    if "reward" in asked.parts and not info.has_reward:
        others = ", ".join(part for part in asked.parts if part != "reward")
        raise ConfigError(
            f"data.bounds.parts: {info.id} has no reward to find bounds of: name the other parts,"
            f" [{others or 'observation'}]"
        )
    ranges = _bounds(asked.search, data, info)
    quantile_release(asked, ranges, relation=relation)
    return ranges


def check_bounds_named(data: DataConfig) -> None:
    """Check that a configuration says where the columns' bounds come from; opens no dataset.

    A bounds file is a public file of the operator: it is read.

    Raises:
        ConfigError: it does not, or it names what is not there, or a file that is wrong.
    """
    source = bounds_source(data)
    if source == "public" and not data.public:
        raise ConfigError("data.bounds=public needs data.public: name a public dataset")
    if isinstance(source, NoisyBounds):
        source = source.search
    if isinstance(source, Place):
        check_bounds_file(source)
    if source == "environment" and data.environment is None:
        raise ConfigError(
            "the columns have no bounds: name data.public datasets, a data.environment, or a"
            " data.bounds file"
        )


def bounds_source(data: DataConfig) -> Place | NoisyBounds | str:
    """Return where the columns' bounds come from: as named, else public sets, else environment."""
    return data.bounds or ("public" if data.public else "environment")


@dataclass(frozen=True, kw_only=True)
class ForeseenColumns:
    """What a plan knows of the columns of a dataset whose rows nobody has opened.

    Args:
        observation_space: declared, or as a bounds file has it.
        action_space: likewise.
        bounds: of a bounds file; where bounds come from elsewhere, 0 to 1 stands for them, and any
            number may be met.
        declared: whether the spaces were declared; else a part that a bounds file leaves out is
            taken for one category.
        has_successors: whether something follows a row; True where the dataset is not here.
        has_reward: whether rows have a reward; where the dataset is not here, as the bounds file
            says.
        lasting: places of the observation's numbers that stay, as declared.
        rising: see `DatasetInfo.rising`.
        gaps: which numbers have an indicator beside them, as declared.
        names: of the observation's numbers, as declared; see `labels.part_names`. () where the
            dataset is not here.
        last_rows_copied: see `DatasetInfo.last_rows_copied`; False where the dataset is not here.
    """

    observation_space: Space
    action_space: Space
    bounds: Bounds
    declared: bool
    has_successors: bool
    has_reward: bool = True
    lasting: tuple[int, ...] = ()
    rising: tuple[int, ...] = ()
    gaps: Gaps = NO_GAPS
    names: tuple[str, ...] = ()
    last_rows_copied: bool = False


def foreseen_columns(data: DataConfig, store: DatasetStore | None) -> ForeseenColumns | None:
    """Return what public facts tell of the columns; None: they tell nothing.

    The spaces are those that the sensitive dataset declares, or a public one, or the environment;
    else a bounds file lists the numbers.

    Args:
        data: datasets, environment and bounds.
        store: datasets, which may lack those that are named; None: Minari's folder.

    Raises:
        ConfigError: the bounds file is wrong, or does not fit the spaces.

    Privacy: reads of a dataset what was declared before there were rows, its spaces and whether
    something follows a row (`DatasetInfo`), and no row.
    """
    source = bounds_source(data)
    if isinstance(source, NoisyBounds):
        source = source.search
    store = store or DatasetStore()
    spaces = _declared_spaces(data, store)
    declared = spaces is not None
    if spaces is None:
        if not isinstance(source, Place):
            return None
        widths = check_bounds_file(source)
        if None in widths:
            return None
        spaces = _space_of(widths[0] or 0), _space_of(widths[1] or 0)
        declared = 0 not in widths
    here = store.info(data.sensitive) if store.holds(data.sensitive) else None
    has_reward = here is None or here.has_reward
    if isinstance(source, Place):
        has_reward = bounds_a_reward(source) if here is None else has_reward
        bounds = bounds_from_file(source, *spaces, has_reward=has_reward)
    else:
        names = bounded_columns(RowLayout(*spaces))
        bounds = Bounds(low=np.zeros(len(names)), high=np.ones(len(names)), columns=names)
    return ForeseenColumns(
        observation_space=spaces[0],
        action_space=spaces[1],
        bounds=bounds,
        declared=declared,
        has_successors=here is None or here.has_successors,
        has_reward=has_reward,
        lasting=() if here is None else here.lasting,
        rising=() if here is None else here.rising,
        gaps=NO_GAPS if here is None else here.gaps,
        names=() if here is None else part_names(here, "observation"),
        last_rows_copied=here is not None and here.last_rows_copied,
    )


def _space_of(width: int) -> Space:
    """Return a space of so many numbers, which bounds alone limit; of none: of one category."""
    return Box(-np.inf, np.inf, (width,)) if width else Discrete(2)


def _declared_spaces(data: DataConfig, store: DatasetStore) -> tuple[Space, Space] | None:
    """Return the spaces that a dataset which is here declares, or the environment does."""
    for dataset in (data.sensitive, *data.public):
        if store.holds(dataset):
            info = store.info(dataset)
            return info.observation_space, info.action_space
    if data.environment is None:
        return None
    try:
        observation_space, action_space, made = environment_spaces(data.environment)
    except PrivRLError:  # its extra is not installed here
        return None
    made.close()  # type: ignore[no-untyped-call]
    return observation_space, action_space


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
    return _bounds(source, data, store.info(data.sensitive))


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


def _bounds(source: Place | str, data: DataConfig, info: DatasetInfo) -> Bounds:
    if isinstance(source, Place):
        return bounds_from_file(
            source, info.observation_space, info.action_space, has_reward=info.has_reward
        )
    check_bounds_named(data)
    return bounds_from_environment(str(data.environment))
