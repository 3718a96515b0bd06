"""The encoder of PrivORL: how its columns are coded, from the configuration and public data."""

from gymnasium.spaces import Box

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import public_reward_levels, scaling_from_bounds
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.stages import encoders


def public_encoder(
    config: PrivorlConfig, store: DatasetStore, found: Bounds | None = None
) -> TransitionEncoder:
    """Return the encoder of the run; see `stages.encoders.public_encoder`.

    Args:
        config: of the run.
        store: datasets.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.
    """
    levels = config.model.reward_levels
    if levels == "public":
        public = config.data.public
        levels = public_reward_levels(
            {name: store.iter_transitions(name, unit="transition") for name in public}
        )
    space = store.info(config.data.sensitive).observation_space
    return encoders.public_encoder(
        config.data, store, coding=_coding(config, space, levels), found=found
    )


def foreseen_encoder(config: PrivorlConfig, known: encoders.ForeseenColumns) -> TransitionEncoder:
    """Return an encoder of as many columns as the run's, for a plan, which opens no data.

    Levels of a reward that only public data tell are left out: it is a number.

    Args:
        config: of the run.
        known: of the columns.
    """
    spaces = known.observation_space, known.action_space
    levels = config.model.reward_levels
    coding = _coding(config, spaces[0], () if levels == "public" else levels)
    return TransitionEncoder(
        *spaces, scaling_from_bounds(known.bounds, *spaces, coding=coding), coding
    )


def _coding(
    config: PrivorlConfig, observation_space: Space, levels: tuple[float, ...]
) -> RowCoding:
    model = config.model
    boxes = isinstance(observation_space, Box)
    return RowCoding(
        next_observation=model.next_observation if boxes else "absolute",
        reward_levels=levels,
        action_margin=model.action_margin,
    )
