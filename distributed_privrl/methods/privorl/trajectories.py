"""PrivORL-j and PrivORL-j-U: a release of whole trajectories, private for each of them.

Reference: PrivORL, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION
from distributed_privrl.marginals.stage import ForeseenTable
from distributed_privrl.methods.privorl.binning import foreseen_bins, public_bins, row_bins
from distributed_privrl.methods.privorl.config import TrajectoriesConfig
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.marginal_rows import MarginalRows, MarginalTrajectories
from distributed_privrl.methods.privorl.method import (
    PrivorlMethod,
    World,
    check_public_parts,
)
from distributed_privrl.methods.privorl.model_config import (
    END,
    FragmentModelConfig,
    StepModelConfig,
    TokenModelConfig,
    TransformerConfig,
    UNetConfig,
)
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.pretraining_config import ArJPretrainingConfig
from distributed_privrl.methods.privorl.sampling_config import (
    FlooredRolloutConfig,
    NoisySupport,
    StepRolloutConfig,
    StitchingConfig,
)
from distributed_privrl.methods.privorl.step_model import StepDrawer, StepSynthesizer
from distributed_privrl.methods.privorl.stitching import TrajectoryDrawer
from distributed_privrl.methods.privorl.support import (
    Support,
    SupportRelease,
    support_question,
    support_release,
)
from distributed_privrl.methods.privorl.token_model import TokenDrawer, TokenSynthesizer
from distributed_privrl.methods.privorl.trajectory_release import released_trajectories
from distributed_privrl.methods.privorl.weights import (
    SMALLER_FACTORS,
    SMALLER_NETWORK,
    binned_weights,
    fragment_weights,
    step_context_width,
)
from distributed_privrl.models.row_bins import RowBins, Variable
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import StagePlan

if TYPE_CHECKING:
    from distributed_privrl.rounds.worker import StoredFragments


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
        return encoder.proper(store.iter_trajectories(dataset, unit=TRAJECTORY))  # line 5

    def shard(self, ref: ShardRef) -> StoredFragments:
        """Return the source of a worker's fragments."""
        from distributed_privrl.rounds.worker import StoredFragments

        return StoredFragments(  # line 6
            ref=ref, encoder=self.encoder, max_fragments_per_unit=self.max_fragments_per_unit
        )


class TrajectoriesMethod(PrivorlMethod):
    """PrivORL-j, with whichever model the configuration names.

    Privacy: the unit is a trajectory or the unit column's value. Its vector is the gradient of the
    mean loss over all its fragments (the first ``training.max_fragments_per_unit``, of its first
    ``data.max_length`` steps), or over a few drawn ones, clipped once: however many there are, one
    unit adds one vector. Fragments are cut inside a trajectory: no other's depend on it. Marginals
    to pre-train on, if any, count a unit's first ``data.max_length`` steps; see
    `MarginalTrajectories`.
    """

    config: TrajectoriesConfig

    @property
    def smaller(self) -> str:
        """What makes the network smaller."""
        fragments = isinstance(self.config.model, FragmentModelConfig)
        return SMALLER_NETWORK if fragments else SMALLER_FACTORS

    @property
    def uses(self) -> tuple[float, float]:
        """By each step of a fragment; by each drawn step, of fragments at each noise level."""
        config = self.config
        model, sampling = config.model, config.training.sampling
        steps = sampling.max_length or config.data.max_length or model.horizon
        levels = 1
        if isinstance(model, FragmentModelConfig):
            levels = (sampling.steps if isinstance(sampling, StitchingConfig) else None) or (
                model.diffusion_steps
            )
        return float(model.horizon), float(config.output.size * steps * levels)

    def weights_of(self, encoder: TransitionEncoder) -> int:
        """Return about how many numbers rounds learn; see `PrivorlMethod.weights_of`."""
        model = self.config.model
        if isinstance(model, TransformerConfig | UNetConfig):
            return fragment_weights(model, encoder)
        assert isinstance(model, StepModelConfig)
        bins = step_bins(foreseen_bins(encoder, model.bins))
        return binned_weights(model, bins, context=step_context_width(bins.width))

    @property
    def _support(self) -> NoisySupport | None:
        """What is asked of a support, if steps are to keep to one."""
        sampling = self.config.training.sampling
        return sampling.support if isinstance(sampling, StepRolloutConfig) else None

    def check_config(self) -> None:
        """Refuse units and lengths that do not fit together."""
        super().check_config()
        _longest(self.config)
        if isinstance(self.config.model, StepModelConfig):
            check_public_parts(self.config.model.public_parts, self.config.training.pretraining)

    def check(self, context: RunContext) -> World:
        """Return the variant's parts; refuse datasets without trajectories."""
        for dataset in (self.config.data.sensitive, *self.config.data.public):
            if context.store.info(dataset).kind == "transitions":
                raise ConfigError(
                    f"{dataset} holds independent transitions: {self.config.method} needs"
                    " trajectories"
                )
        world = super().check(context)
        if self._support is not None:
            self._support_release(self._support, world)
        return world

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds and the support, those that are found with noise."""
        first, asked = super().first_releases(), self._support
        if asked is None:
            return first
        found = FirstRelease(
            name="support",
            key="training.sampling.support",
            epsilon=asked.epsilon,
            ask=partial(self._ask_support, asked),
        )
        return (*first, found)

    def _support_release(self, asked: NoisySupport, world: World) -> SupportRelease:
        steps = world.parts.synthesizer
        assert isinstance(steps, StepSynthesizer)
        return support_release(asked, steps.fragments.transitions, steps.bins, self.relation)

    def _ask_support(
        self, asked: NoisySupport, world: World, _: UnitCount, context: RunContext
    ) -> Question[World]:
        steps, drawer = world.parts.synthesizer, world.parts.drawer
        assert isinstance(steps, StepSynthesizer)
        assert isinstance(drawer, StepDrawer)

        def known(support: Support) -> World:
            within = replace(drawer, support=support, attempts=asked.attempts)
            return replace(world, parts=replace(world.parts, drawer=within))

        question = support_question(
            self._support_release(asked, world),
            self.config.data,
            context,
            encoder=steps.fragments.transitions,
        )
        return question.then(known)

    def priced(
        self, table: ForeseenTable, units: UnitCount, weights: int | None
    ) -> tuple[StagePlan, ...]:
        """Return the rounds; refuse a support of more cells than the units could fill."""
        if self._support is not None:
            self._support.check_units(units.value, self.relation)
        return super().priced(table, units, weights)

    def parts(self, store: DatasetStore, encoder: TransitionEncoder) -> Parts:
        """Return the model of fragments, and what draws whole trajectories of them."""
        training = self.config.training
        synthesizer = fragment_synthesizer(self.config, store, encoder)
        return Parts(
            rows=FragmentRows(
                encoder=synthesizer.encoder,
                max_fragments_per_unit=training.max_fragments_per_unit,
            ),
            synthesizer=synthesizer,
            drawer=_drawer(self.config, synthesizer),
            release=partial(released_trajectories, synthesizer.fragments),
            all_rows=training.all_fragments,
            most_rows=training.max_fragments_per_unit,
        )

    @property
    def marginal_rows(self) -> MarginalRows | None:
        """Whole trajectories, if pre-training is on what the run releases."""
        pretraining = self.config.training.pretraining
        if not isinstance(pretraining, ArJPretrainingConfig) or not pretraining.from_marginals:
            return None
        return MarginalTrajectories(self.config, pretraining.marginals)

    def informed(self, parts: Parts, rows: NDArray[np.float32]) -> Parts:
        """Return the parts with half of the bins where drawn steps lie, as public ones place them.

        Ranges, and with them the cells of a support, stay those of the bounds.

        Privacy: post-processing of released marginals.
        """
        steps, drawer = parts.synthesizer, parts.drawer
        assert isinstance(steps, StepSynthesizer)
        assert isinstance(drawer, StepDrawer)
        row = row_bins(
            steps.fragments.transitions,
            steps.fragments.own_steps(rows)[:, :-1],
            count=steps.model.bins,
            declared=True,
        )
        steps = replace(steps, bins=step_bins(row))
        return replace(parts, synthesizer=steps, drawer=replace(drawer, synthesizer=steps))


def _longest(config: TrajectoriesConfig) -> int:
    """Return the length that synthetic trajectories are cut at."""
    horizon = config.model.horizon
    if config.data.unit == TRANSITION:
        raise ConfigError(
            f"data.unit=transition: {config.method} protects whole trajectories; set data.unit to"
            " trajectory or to the unit's column"
        )
    longest = config.training.sampling.longest(config.data)
    for name, length in (
        ("data.max_length", config.data.max_length),
        ("training.sampling.max_length", longest),
    ):
        if length is not None and horizon > length:
            raise ConfigError(
                f"model.horizon={horizon} is above {name}={length}: every fragment would be padded;"
                " lower it"
            )
    return longest


def fragment_synthesizer(
    config: TrajectoriesConfig, store: DatasetStore, transitions: TransitionEncoder
) -> FragmentSynthesizer | StepSynthesizer | TokenSynthesizer:
    """Return the run's model of fragments.

    Args:
        config: of the run.
        store: datasets; public ones are read for the bins of steps and tokens.
        transitions: encodes a step.
    """
    model = config.model
    encoder = FragmentEncoder(transitions, model.horizon, time_limit=_longest(config)).to_json()
    if isinstance(model, TransformerConfig | UNetConfig):
        return FragmentSynthesizer(model=model, encoder=encoder)
    row = public_bins(config.data, store, transitions, count=model.bins)
    if isinstance(model, TokenModelConfig):
        return TokenSynthesizer(model=model, encoder=encoder, bins=step_bins(row))
    return StepSynthesizer(model=model, encoder=encoder, bins=step_bins(row))


def step_bins(row: RowBins) -> RowBins:
    """Return the variables of a step: those of its transition, and whether it is cut there."""
    truncated = Variable(start=row.width, kind="level", marks=(-1.0, 1.0), part=END)
    return RowBins((*row.variables, truncated))


def _drawer(
    config: TrajectoriesConfig,
    synthesizer: FragmentSynthesizer | StepSynthesizer | TokenSynthesizer,
) -> TrajectoryDrawer | StepDrawer | TokenDrawer:
    sampling, longest = config.training.sampling, _longest(config)
    if isinstance(synthesizer, StepSynthesizer):
        assert isinstance(sampling, StepRolloutConfig)
        return StepDrawer(
            synthesizer=synthesizer,
            trajectories=config.output.size,
            config=sampling,
            max_length=longest,
        )
    if isinstance(synthesizer, TokenSynthesizer):
        assert isinstance(sampling, FlooredRolloutConfig)
        return TokenDrawer(
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
