"""How the columns of a row are coded, from a configuration and public data, and their encoder."""

from typing import Annotated, Literal, Protocol

from gymnasium.spaces import Box
from pydantic import Field

from distributed_privrl.core.config import DataConfig, StrictModel
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import public_reward_levels, scaling_from_bounds
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.stages import encoders


class CodingConfig(StrictModel):
    """How a transition's columns are coded for a model of continuous numbers."""

    next_observation: Literal["absolute", "difference"] = Field(
        default="difference", description="code s' as it is, or as s' - s"
    )
    reward_levels: Literal["public"] | tuple[float, ...] = Field(
        default="public",
        description="values of a reward that takes two to eight, coded as levels: those of the"
        " public datasets, a list, or [] for a reward of any value",
    )
    action_margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.2,
        description="code an action at its bound beyond it by this share of half its range",
    )


class CodedRun(Protocol):
    """The configuration of a run whose model learns coded rows."""

    @property
    def data(self) -> DataConfig:
        """Datasets and bounds."""
        ...

    @property
    def model(self) -> CodingConfig:
        """How columns are coded, beside what else the model takes."""
        ...


def public_encoder(
    config: CodedRun, store: DatasetStore, found: Bounds | None = None
) -> TransitionEncoder:
    """Return the encoder of the run; see `stages.encoders.public_encoder`.

    Args:
        config: of the run.
        store: datasets.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.
    """
    data, levels = config.data, config.model.reward_levels
    if levels == "public":
        levels = public_reward_levels(
            {name: store.iter_transitions(name, unit="transition") for name in data.public}
        )
    space = store.info(data.sensitive).observation_space
    coding = _coding(config.model, space, levels)
    return encoders.public_encoder(data, store, coding=coding, found=found)


def foreseen_encoder(config: CodedRun, known: encoders.ForeseenColumns) -> TransitionEncoder:
    """Return an encoder of as many columns as the run's, for a plan, which opens no data.

    Levels of a reward that only public data tell are left out: it is a number.

    Args:
        config: of the run.
        known: of the columns.
    """
    spaces = known.observation_space, known.action_space
    levels = config.model.reward_levels
    coding = _coding(config.model, spaces[0], () if levels == "public" else levels)
    return TransitionEncoder(
        *spaces, scaling_from_bounds(known.bounds, *spaces, coding=coding), coding
    )


def _coding(model: CodingConfig, observation_space: Space, levels: tuple[float, ...]) -> RowCoding:
    boxes = isinstance(observation_space, Box)
    return RowCoding(
        next_observation=model.next_observation if boxes else "absolute",
        reward_levels=levels,
        action_margin=model.action_margin,
    )
