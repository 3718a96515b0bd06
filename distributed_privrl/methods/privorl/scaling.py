"""The encoder of PrivORL: columns standardised by public facts or by bounds that were paid for."""

from pathlib import Path

from gymnasium.spaces import Box

from distributed_privrl.core.config import DataConfig, NoisyBounds
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds, bounds_from_environment, bounds_from_file
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import (
    public_reward_levels,
    scaling_from_bounds,
    scaling_from_public,
)
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.bounding import bounds_release


def search_ranges(config: PrivorlConfig, store: DatasetStore) -> Bounds | None:
    """Return the public ranges in which bounds are to be found with noise, None if they are public.

    Raises:
        ConfigError: a column has no range, or ``data.bounds`` does not fit the columns.
    """
    asked = config.data.bounds
    if not isinstance(asked, NoisyBounds):
        return None
    info = store.info(config.data.sensitive)
    ranges = _bounds(asked.search, config.data, (info.observation_space, info.action_space))
    bounds_release(asked, ranges, relation=Relation(config.privacy.relation))
    return ranges


def public_encoder(
    config: PrivorlConfig, store: DatasetStore, found: Bounds | None = None
) -> TransitionEncoder:
    """Return the encoder of the run; its scaling knows public facts alone.

    Args:
        config: of the run.
        store: datasets.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.

    Raises:
        ConfigError: spaces differ between datasets, bounds are missing for a column, or public
            data hold a value that is not finite.

    Privacy: reads the sensitive dataset's spaces (declared, public), none of its rows; ``found``
    is post-processed.
    """
    data = config.data
    info = store.info(data.sensitive)
    spaces = info.observation_space, info.action_space
    for dataset in data.public:
        _check_spaces(data.sensitive, spaces, dataset, store)
    coding = _coding(config, store, spaces[0])
    source = data.bounds or ("public" if data.public else "environment")
    if source == "public":
        if not data.public:
            raise ConfigError("data.bounds=public needs data.public: name a public dataset")
        chunks = {name: store.iter_transitions(name, unit="transition") for name in data.public}
        scaling = scaling_from_public(chunks, *spaces, coding=coding)
    else:
        bounds = found if isinstance(source, NoisyBounds) else _bounds(source, data, spaces)
        if bounds is None:
            raise ConfigError("data.bounds are to be found with noise: find and charge them first")
        scaling = scaling_from_bounds(bounds, *spaces, coding=coding)
    return TransitionEncoder(*spaces, scaling, coding)


def _coding(config: PrivorlConfig, store: DatasetStore, observations: Space) -> RowCoding:
    """Return how rows are coded: from the configuration and public data alone."""
    model, levels = config.model, config.model.reward_levels
    if levels == "public":
        public = config.data.public
        levels = public_reward_levels(
            {name: store.iter_transitions(name, unit="transition") for name in public}
        )
    return RowCoding(
        next_observation=model.next_observation if isinstance(observations, Box) else "absolute",
        reward_levels=levels,
        action_margin=model.action_margin,
    )


def _bounds(source: Path | str, data: DataConfig, spaces: tuple[Space, Space]) -> Bounds:
    if isinstance(source, Path):
        return bounds_from_file(source, *spaces)
    if data.environment is None:
        raise ConfigError(
            "the columns have no bounds: name data.public datasets, a data.environment, or a"
            " data.bounds file"
        )
    return bounds_from_environment(data.environment)


def _check_spaces(
    sensitive: str, spaces: tuple[Space, Space], public: str, store: DatasetStore
) -> None:
    other = store.info(public)
    for name, mine, theirs in (
        ("observation space", spaces[0], other.observation_space),
        ("action space", spaces[1], other.action_space),
    ):
        if type(mine) is not type(theirs) or mine.shape != theirs.shape:
            raise ConfigError(
                f"public dataset {public} has {name} {theirs}, {sensitive} has {mine}: public data"
                " must have the same spaces"
            )
