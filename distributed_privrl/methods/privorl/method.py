"""PrivORL as a declared run: scaling, pre-training, private fine-tuning, sampling.

Reference: PrivORL, algorithms 1 and 2.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, get_args

from distributed_privrl.core.config import NoisyBounds
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import (
    PretrainingConfig,
    PrivorlConfig,
    RowPart,
)
from distributed_privrl.methods.privorl.curiosity import NovelUpdateFactory
from distributed_privrl.methods.privorl.pretraining import (
    Pretrainer,
    PretrainerSpec,
    PublicRows,
    coding_digest,
    pretraining_key,
)
from distributed_privrl.methods.privorl.release import (
    PRETRAINED,
    SYNTHETIC,
    TRAINED,
    ChunkDrawer,
    draw_chunks,
)
from distributed_privrl.methods.privorl.scaling import public_encoder
from distributed_privrl.methods.privorl.update import (
    DiffusionUpdate,
    Synthesizer,
    private_network,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint, save_checkpoint
from distributed_privrl.rounds.worker import ShardSource
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.context import Release, RunContext
from distributed_privrl.stages.devices import check_device, device_of
from distributed_privrl.stages.encoders import check_bounds_named, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.plan import check_relation
from distributed_privrl.stages.public_work import take_steps
from distributed_privrl.stages.round_plan import RoundPlan, make_plan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds
from distributed_privrl.updates.parameters import FlatParameters

START = "start.safetensors"


class Rows(PublicRows, Protocol):
    """Reads and encodes what the model learns from; picklable, holds no arrays."""

    @property
    def encoder(self) -> str:
        """JSON of what encodes the rows."""
        ...

    def shard(self, ref: ShardRef) -> ShardSource:
        """Return the source of a worker's sensitive rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a variant trains and releases, once the scaling of its columns is known.

    Args:
        rows: reads and encodes the data.
        synthesizer: the model.
        drawer: draws the release, chunk by chunk.
        release: what comes of the folder of chunks, and of what drew them.
        all_rows: every row of a unit takes part in its vector, not one drawn for each copy.
        most_rows: public bound on a unit's rows, for ``all_rows``.
    """

    rows: Rows
    synthesizer: Synthesizer
    drawer: ChunkDrawer
    release: Callable[[Path, ChunkDrawer], Release]
    all_rows: bool = False
    most_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        parts: of the variant, with bounds and a support that are public or paid for.
    """

    ranges: Bounds | None
    parts: Parts


@dataclass(frozen=True)
class PrivorlMethod(DeclaredMethod[World]):
    """What the variants of PrivORL share.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; scaling from public facts, or from
    quantiles found with noise (event ``pure_dp``); the number of units declared or counted with
    noise; the support that draws keep to, if any, found with noise (event ``discrete_laplace``);
    beyond that, sensitive rows touch the parameters through private rounds alone (event
    ``poisson_gaussian``); what is drawn from them is post-processing.
    """

    config: PrivorlConfig

    @abc.abstractmethod
    def parts(self, store: DatasetStore, encoder: TransitionEncoder) -> Parts:
        """Return the variant's parts, for the encoder of its transitions."""

    def check_config(self) -> None:
        """Refuse settings that do not fit together."""
        check_config(self.config)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds, if they are found with noise."""
        return first_bounds(self.config.data, self._ask_bounds)

    def check(self, context: RunContext) -> World:
        """Return the variant's parts; see `DeclaredMethod.check`."""
        config = self.config
        check_device(config.runtime, context.executor)
        ranges = search_ranges(config.data, context.store, relation=self.relation)
        parts = self.parts(context.store, public_encoder(config, context.store, ranges))
        parts.synthesizer.build(config.seed)  # what cannot be built is refused before any charge
        return World(ranges=ranges, parts=parts)

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        config, store = self.config, context.store
        assert world.ranges is not None

        def known(bounds: Bounds) -> World:
            parts = self.parts(store, public_encoder(config, store, bounds))
            return replace(world, parts=parts)

        asked = bounds_question(
            config.data, context, world.ranges, relation=self.relation, units=units
        )
        return asked.then(known)

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds."""
        config = self.config
        plan = make_plan(
            config.privacy,
            config.training,
            unit=config.data.unit,
            units=units,
            spent=self.spent,
            curiosity_rate=config.training.curiosity_rate,
        )
        return (StagePlan(name="fine-tune", plan=plan),)

    def before(self, world: World, context: RunContext) -> None:
        """Pre-train on public rows."""
        _pretrain(self.config, context, world.parts)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Fine-tune in private rounds."""
        assert isinstance(stage.plan, RoundPlan)
        _fine_tune(self.config, context, world.parts, stage.plan)
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic rows."""
        parts = world.parts
        draw_chunks(parts.synthesizer, parts.drawer, self.config, context)
        return Released(release=parts.release(context.folder / SYNTHETIC, parts.drawer))


def check_config(config: PrivorlConfig) -> None:
    """Check all that the configuration alone tells, before anything is counted or found.

    Raises:
        ConfigError: settings do not fit together.
        UnsafeError: the relation is ``replace_one``.
    """
    check_relation(config.privacy)
    if config.training.pretraining.steps and not config.data.public:
        raise ConfigError(
            "training.pretraining.steps > 0 needs data.public: name a public dataset, or set the"
            " steps to 0"
        )
    check_bounds_named(config.data)


def check_public_parts(parts: Sequence[RowPart], pretraining: PretrainingConfig) -> None:
    """Check that public data can teach the parts of a row that they alone are to teach.

    Raises:
        ConfigError: there is no pre-training, or nothing is left to learn.
    """
    if set(parts) == set(get_args(RowPart)):
        raise ConfigError("model.public_parts has all parts of a row: nothing is left to learn")
    if parts and not pretraining.steps:
        raise ConfigError(
            f"model.public_parts={list(parts)} need public pre-training: set"
            " training.pretraining.steps above 0, or leave them out"
        )


def _pretrain(config: PrivorlConfig, context: RunContext, parts: Parts) -> None:
    """Algorithm 1, lines 2 to 12; algorithm 2, lines 3 to 18."""
    settings = config.training.pretraining
    coding, kept = coding_digest(parts.rows.encoder, parts.synthesizer), None
    own = isinstance(config.data.bounds, NoisyBounds)  # what follows from them is this run's
    if config.runtime.pretrained is not None and not own:
        key = pretraining_key(
            public={name: inspect(context.store, name).fingerprint for name in config.data.public},
            coding=coding,
            config=settings,
            seed=config.seed,
        )
        kept = config.runtime.pretrained.absolute() / f"{key}.safetensors"
    spec = PretrainerSpec(
        run_id=context.run_id,
        root=str(context.store.root.absolute()),
        public=config.data.public,
        rows=parts.rows,
        synthesizer=parts.synthesizer,
        config=settings,
        seed=config.seed,
        checkpoint=context.folder / PRETRAINED,
        coding=coding,
        kept=kept,
        device=device_of(config.runtime),
    )
    take_steps(
        Pretrainer,
        [spec],
        context,
        total=settings.steps,
        label="public pre-training",
        service=spec.device == "cpu",  # on a GPU it takes a worker's place
        note=_public_loss,
    )


def _public_loss(group: WorkerGroup) -> str:
    loss = group.call("loss")[0]
    return "" if loss is None else f"loss on public rows {loss:.4g}"


def _fine_tune(config: PrivorlConfig, context: RunContext, parts: Parts, plan: RoundPlan) -> None:
    """Algorithm 1, line 13, and algorithm 2, line 19: private rounds over the sensitive units."""
    training = config.training

    def update(clip_norm: float | None) -> DiffusionUpdate:
        return DiffusionUpdate(
            synthesizer=parts.synthesizer,
            seed=config.seed,
            clip_norm=clip_norm,
            micro_batch_rows=training.rows_at_once(config.runtime),
            device=device_of(config.runtime),
        )

    spec = TrainingSpec(
        source=parts.rows.shard,
        local_update=update,
        initial=_start(config, context, parts),
        checkpoint=context.folder / TRAINED,
        copies=training.noise_multiplicity,
        all_rows=parts.all_rows,
        most_rows=parts.most_rows,
        public_update=_novel_update(config, context, update(plan.clip_norm), plan),
    )
    train_in_rounds(spec, config, context, plan)


def _start(config: PrivorlConfig, context: RunContext, parts: Parts) -> Path:
    """Return the checkpoint that rounds begin from: without what public data alone teach."""
    pretrained, start = context.folder / PRETRAINED, context.folder / START
    if not parts.synthesizer.public_parts:
        return pretrained
    network = private_network(
        parts.synthesizer, config.seed, pretrained=pretrained, run_id=context.run_id
    )
    _, state = load_checkpoint(pretrained, run_id=context.run_id, stage="pretraining")
    save_checkpoint(start, {"parameters": FlatParameters(network).vector}, state)
    return start


def _novel_update(
    config: PrivorlConfig, context: RunContext, update: DiffusionUpdate, plan: RoundPlan
) -> NovelUpdateFactory | None:
    """Return what adds novel samples to each noisy sum; the server, which reserves no GPU, does."""
    if plan.samples == 0:
        return None
    training = config.training
    return NovelUpdateFactory(
        update=replace(update, device="cpu"),
        samples=plan.samples,
        candidates=training.expected_batch_size,
        copies=training.noise_multiplicity,
        sampler_steps=training.pretraining.curiosity_sampler_steps,
        seed=config.seed,
        pretrained=context.folder / PRETRAINED,
        run_id=context.run_id,
    )
