"""PrivORL-j and PrivORL-j-U: a release of whole trajectories, private for each of them.

Reference: paper 000, algorithm 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.metadata import SEAM_KEY, SUPPORT_KEY
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Trajectories
from distributed_privrl.methods.privorl.binning import public_bins
from distributed_privrl.methods.privorl.config import END
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.method import Parts, PrivorlMethod, plan_rounds
from distributed_privrl.methods.privorl.sampling import ChunkDrawer, read_chunks
from distributed_privrl.methods.privorl.step_model import StepDrawer, StepSynthesizer
from distributed_privrl.methods.privorl.stitching import (
    SeamErrors,
    TrajectoryDrawer,
    decode_trajectories,
    trajectories_of,
)
from distributed_privrl.methods.privorl.support import SupportRelease, find_support, support_release
from distributed_privrl.methods.privorl.trajectory_config import (
    StepModelConfig,
    StepRolloutConfig,
    StitchingConfig,
    TrajectoriesConfig,
)
from distributed_privrl.models.row_bins import RowBins, Variable
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.rounds.worker import StoredFragments
from distributed_privrl.stages.context import RunContext, SyntheticTrajectories
from distributed_privrl.stages.round_plan import RoundPlan


@dataclass(frozen=True, kw_only=True)
class FragmentRows:
    """The fragments of a dataset's trajectories as rows.

    Args:
        encoder: JSON of the `FragmentEncoder`.
        max_fragments_per_unit: public cap on those of a sensitive unit.
    """

    encoder: str
    max_fragments_per_unit: int

    def public(self, store: DatasetStore, dataset: str) -> NDArray[np.float32]:
        """Return a public dataset's proper fragments ``(F, W)``, all of them."""
        encoder = FragmentEncoder.from_json(self.encoder)
        encoded = [
            encoder.encode(chunk) for chunk in store.iter_trajectories(dataset, unit=TRAJECTORY)
        ]
        return np.concatenate([part.rows[part.valid] for part in encoded])

    def shard(self, ref: ShardRef) -> StoredFragments:
        """Return the source of a worker's fragments."""
        return StoredFragments(
            ref=ref, encoder=self.encoder, max_fragments_per_unit=self.max_fragments_per_unit
        )


def plan_trajectories(config: TrajectoriesConfig) -> RoundPlan:
    """Return what a run would do and cost, from the configuration alone; see `plan_rounds`.

    Raises:
        ConfigError: the unit is a transition, or lengths do not fit together.
    """
    _longest(config)
    return plan_rounds(config, curiosity_rate=config.training.curiosity_rate)


def trajectories_method(config: TrajectoriesConfig) -> PrivorlMethod:
    """Return PrivORL-j, with whichever model the configuration names.

    Privacy: the unit is a trajectory or the unit column's value. Its vector is the gradient of the
    mean loss over all its fragments (the first ``training.max_fragments_per_unit``, of its first
    ``data.max_length`` steps), or over a few drawn ones, clipped once: however many there are, one
    unit adds one vector. Fragments are cut inside a trajectory: no other's depend on it.
    """
    return PrivorlMethod(
        config=config,
        parts_of=partial(_parts, config),
        check_data=partial(_check_data, config),
    )


def _check_data(config: TrajectoriesConfig, store: DatasetStore) -> None:
    """Check that lengths fit together and that datasets hold trajectories.

    Raises:
        ConfigError: as `plan_trajectories`, or a dataset holds no trajectories.
    """
    _longest(config)
    for dataset in (config.data.sensitive, *config.data.public):
        if store.info(dataset).kind == "transitions":
            raise ConfigError(
                f"{dataset} holds independent transitions: {config.method} needs trajectories"
            )


def _longest(config: TrajectoriesConfig) -> int:
    """Return the length that synthetic trajectories are cut at."""
    horizon = config.model.horizon
    if config.data.unit == TRANSITION:
        raise ConfigError(
            f"data.unit=transition: {config.method} protects whole trajectories; set data.unit to"
            " trajectory or to the unit's column"
        )
    if config.longest is None:
        also = ", or data.max_length" if config.data.unit == TRAJECTORY else ""
        raise ConfigError(
            "training.sampling.max_length is not set: give the steps of a synthetic trajectory at"
            f" most{also}"
        )
    for name, length in (
        ("data.max_length", config.data.max_length),
        ("training.sampling.max_length", config.longest),
    ):
        if length is not None and horizon > length:
            raise ConfigError(
                f"model.horizon={horizon} is above {name}={length}: every fragment would be padded;"
                " lower it"
            )
    return config.longest


def fragment_synthesizer(
    config: TrajectoriesConfig, store: DatasetStore, transitions: TransitionEncoder
) -> FragmentSynthesizer | StepSynthesizer:
    """Return the run's model of fragments.

    Args:
        config: of the run.
        store: datasets; public ones are read for the bins of steps.
        transitions: encodes a step.
    """
    encoder = FragmentEncoder(transitions, config.model.horizon, time_limit=_longest(config))
    if not isinstance(config.model, StepModelConfig):
        return FragmentSynthesizer(model=config.model, encoder=encoder.to_json())
    row = public_bins(config.data, store, transitions, count=config.model.bins)
    truncated = Variable(start=row.width, kind="level", marks=(-1.0, 1.0), part=END)
    bins = RowBins((*row.variables, truncated))
    return StepSynthesizer(model=config.model, encoder=encoder.to_json(), bins=bins)


def _drawer(
    config: TrajectoriesConfig, synthesizer: FragmentSynthesizer | StepSynthesizer
) -> TrajectoryDrawer | StepDrawer:
    sampling, longest = config.training.sampling, _longest(config)
    if isinstance(synthesizer, StepSynthesizer):
        assert isinstance(sampling, StepRolloutConfig)
        return StepDrawer(
            synthesizer=synthesizer,
            trajectories=config.output.size,
            config=sampling,
            max_length=longest,
        )
    assert isinstance(sampling, StitchingConfig)
    return TrajectoryDrawer(
        synthesizer=synthesizer,
        config=sampling,
        trajectories=config.output.size,
        max_length=longest,
    )


def _parts(
    config: TrajectoriesConfig, store: DatasetStore, transitions: TransitionEncoder
) -> Parts:
    synthesizer = fragment_synthesizer(config, store, transitions)
    encoder, drawer = synthesizer.fragments, _drawer(config, synthesizer)

    def decoded(folder: Path) -> Iterator[Trajectories]:
        return (decode_trajectories(encoder, steps) for steps in read_chunks(folder, drawer.count))

    def facts(folder: Path, drew: ChunkDrawer) -> dict[str, Any]:
        errors = SeamErrors.none()
        for steps in read_chunks(folder, drawer.count):
            errors.add(encoder, steps)
        return {SEAM_KEY: errors.facts(), **support_facts(folder, drew)}

    return Parts(
        rows=FragmentRows(
            encoder=synthesizer.encoder,
            max_fragments_per_unit=config.training.max_fragments_per_unit,
        ),
        synthesizer=synthesizer,
        drawer=drawer,
        release=lambda folder, drew: SyntheticTrajectories(
            chunks=partial(decoded, folder), facts=partial(facts, folder, drew)
        ),
        all_rows=config.training.all_fragments,
        most_rows=config.training.max_fragments_per_unit,
        curiosity_rate=config.training.curiosity_rate,
        bounded=_bounded(config, drawer),
    )


def support_facts(folder: Path, drawer: ChunkDrawer) -> dict[str, Any]:
    """Return how many cells of the support count, and how many trajectories are not within them.

    Privacy: post-processing of the noisy histogram and of what is released.
    """
    support = drawer.support if isinstance(drawer, StepDrawer) else None
    if support is None:
        return {}
    astray = sum(
        len(np.unique(trajectories_of(steps)[~support.contains(steps)]))
        for steps in read_chunks(folder, drawer.count)
    )
    cells = {"cells": support.grid.size, "visited": len(support.visited)}
    return {SUPPORT_KEY: {**cells, "trajectories_outside": astray}}


@dataclass(frozen=True, kw_only=True)
class StepsWithin:
    """Finds the support that trajectories keep to; see `run.Bounded`.

    Args:
        release: the histogram that is asked for.
        data: the sensitive dataset and its unit.
        drawer: of the trajectories.
        attempts: how often one that leaves the support is drawn again.
    """

    release: SupportRelease
    data: DataConfig
    drawer: StepDrawer
    attempts: int

    def find(self, context: RunContext, units: UnitCount) -> tuple[StepDrawer, Stage]:
        """Return the drawer that keeps to the support, and the certificate's stage."""
        transitions = self.drawer.synthesizer.fragments.transitions
        support, stage = find_support(
            self.release, self.data, context, encoder=transitions, units=units
        )
        return replace(self.drawer, support=support, attempts=self.attempts), stage


def _bounded(
    config: TrajectoriesConfig, drawer: TrajectoryDrawer | StepDrawer
) -> StepsWithin | None:
    """Return what finds the support that the drawer keeps to, if one is asked for.

    Raises:
        ConfigError: a column is no number of an observation.
    """
    if not isinstance(drawer, StepDrawer) or drawer.config.support is None:
        return None
    asked, steps = drawer.config.support, drawer.synthesizer
    relation = Relation(config.privacy.relation)
    return StepsWithin(
        release=support_release(asked, steps.fragments.transitions, steps.bins, relation),
        data=config.data,
        drawer=drawer,
        attempts=asked.attempts,
    )
