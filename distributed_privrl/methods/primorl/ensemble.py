"""The ensemble of a run: how its rows are coded, how it is built, saved and loaded.

A run makes the facts before its budget is held: what builds, saves or loads models imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors
from gymnasium.spaces import Box

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import atomic_path
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bombs import check_holes
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling, scaling_from_bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.config import DynamicsConfig, LocalTrainingConfig
from distributed_privrl.methods.primorl.settings import local_settings
from distributed_privrl.stages.encoders import bounds_of

if TYPE_CHECKING:
    from torch import Tensor

    from distributed_privrl.methods.primorl.model_environment import ModelFacts
    from distributed_privrl.methods.primorl.update import DynamicsUpdate
    from distributed_privrl.models.dynamics import DynamicsEnsemble

_CODING = RowCoding(next_observation="difference")


@dataclass(frozen=True, kw_only=True)
class EnsembleFacts:
    """All that is public about an ensemble; picklable.

    Args:
        config: its sizes.
        encoder_json: JSON of the encoder of its rows.
        bounds: of the columns: lower, upper, names.
    """

    config: DynamicsConfig
    encoder_json: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls,
        config: DynamicsConfig,
        data: DataConfig,
        store: DatasetStore,
        found: Bounds | None = None,
    ) -> EnsembleFacts:
        """Return the facts of a run.

        Args:
            config: sizes of the ensemble.
            data: datasets and bounds.
            store: datasets.
            found: bounds that were found with noise and charged, where ``data.bounds`` says so.

        Raises:
            ConfigError: bounds are missing, a space is no Box, or ``difference_share`` is for other
                columns.

        Privacy: reads the sensitive dataset's spaces, none of its rows.
        """
        info = store.info(data.sensitive)
        spaces = info.observation_space, info.action_space
        if not all(isinstance(space, Box) for space in spaces):
            raise ConfigError(
                f"{data.sensitive} has {spaces[0]} and {spaces[1]}: primorl needs Box observations"
                " and actions"
            )
        bounds = bounds_of(data, store, found)
        scaling = scaling_from_bounds(bounds, *spaces, coding=_CODING)
        encoder = TransitionEncoder(*spaces, scaling, _CODING)
        scale = scaling.scale.copy()
        differences = scale[encoder.layout.blocks["next_observation"]]
        if np.size(config.difference_share) not in (1, len(differences)):
            raise ConfigError(
                f"model.difference_share has {np.size(config.difference_share)} numbers,"
                f" {data.sensitive} has {len(differences)} columns of observations: give one number"
                " for all, or one a column"
            )
        differences *= np.array(config.difference_share)
        encoder = replace(encoder, scaling=Scaling(offset=scaling.offset, scale=scale))
        return cls(
            config=config,
            encoder_json=encoder.to_json(),
            low=tuple(bounds.low.tolist()),
            high=tuple(bounds.high.tolist()),
            columns=bounds.columns,
        )

    @cached_property
    def encoder(self) -> TransitionEncoder:
        """Transitions to the ensemble's rows."""
        return TransitionEncoder.from_json(self.encoder_json)

    @property
    def bounds(self) -> Bounds:
        """Of observations, actions and reward."""
        return Bounds(low=list(self.low), high=list(self.high), columns=self.columns)  # type: ignore[arg-type]

    @property
    def model_facts(self) -> ModelFacts:
        """What the pessimistic model needs."""
        from distributed_privrl.methods.primorl.model_environment import ModelFacts

        return ModelFacts.of(self.encoder, self.bounds)

    def update(
        self, local: LocalTrainingConfig, clip_norm: float | None, *, device: str = "cpu"
    ) -> DynamicsUpdate:
        """Return what builds the local update in a worker.

        Args:
            local: of one trajectory's training.
            clip_norm: L2 bound of a unit's vector; None: no bound, without privacy.
            device: where units are trained on.
        """
        from distributed_privrl.methods.primorl.update import DynamicsUpdate, TransitionColumns

        return DynamicsUpdate(
            columns=TransitionColumns.of(self.encoder.layout),
            members=self.config.members,
            hidden=self.config.hidden,
            config=local_settings(local),
            clip_norm=clip_norm,
            log_variance_range=self.config.log_variance_range,
            device=device,
        )

    def build(self, seed: int) -> DynamicsEnsemble:
        """Return a freshly initialised ensemble; the same public seed gives the same weights."""
        import torch

        generator = torch.Generator().manual_seed(Streams(seed).integer("model"))
        return self.update(LocalTrainingConfig(), None).ensemble(generator)

    def load(self, parameters: Tensor) -> DynamicsEnsemble:
        """Return the ensemble with flat ``parameters`` ``(P,)``."""
        from distributed_privrl.updates.parameters import FlatParameters

        ensemble = self.build(0)
        FlatParameters(ensemble).load(parameters)
        return ensemble.requires_grad_(False)

    def save(self, parameters: Tensor, path: Path) -> None:
        """Write the ensemble to ``path``: weights as safetensors, the rest as JSON in its header.

        Raises:
            StorageError: the file cannot be written.
        """
        import safetensors.torch

        about = {
            "model": self.config.model_dump(mode="json"),
            "encoder": json.loads(self.encoder_json),
            "bounds": {"low": self.low, "high": self.high, "columns": self.columns},
        }
        content = safetensors.torch.save(
            {"parameters": parameters.contiguous()}, {"ensemble": json.dumps(about)}
        )
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)


def load_ensemble(path: Path) -> tuple[EnsembleFacts, DynamicsEnsemble]:
    """Return the ensemble that `EnsembleFacts.save` wrote to ``path``, and its facts.

    Raises:
        StorageError: the file cannot be read, or holds no ensemble.
    """
    from distributed_privrl.models.layers import check_weights

    try:
        check_holes(path)
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["ensemble"])
            parameters = file.get_tensor("parameters")
        check_weights([parameters], needed=1, finite=False)  # noise may have made it diverge
        facts = EnsembleFacts(
            config=DynamicsConfig(**about["model"]),
            encoder_json=json.dumps(about["encoder"]),
            **{name: tuple(values) for name, values in about["bounds"].items()},
        )
        return facts, facts.load(parameters)
    except (
        *(OSError, ConfigError, KeyError, TypeError, ValueError, AttributeError, RuntimeError),
        safetensors.SafetensorError,
    ) as error:
        raise StorageError(f"{path} holds no ensemble of dynamics models: {error}") from error
