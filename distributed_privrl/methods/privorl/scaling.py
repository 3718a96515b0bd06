"""The encoder of PrivORL: how its columns are coded, from the configuration and public data."""

from gymnasium.spaces import Box

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import public_reward_levels
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
    model, levels = config.model, config.model.reward_levels
    if levels == "public":
        public = config.data.public
        levels = public_reward_levels(
            {name: store.iter_transitions(name, unit="transition") for name in public}
        )
    boxes = isinstance(store.info(config.data.sensitive).observation_space, Box)
    coding = RowCoding(
        next_observation=model.next_observation if boxes else "absolute",
        reward_levels=levels,
        action_margin=model.action_margin,
    )
    return encoders.public_encoder(config.data, store, coding=coding, found=found)
