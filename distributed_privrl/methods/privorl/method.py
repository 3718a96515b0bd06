"""PrivORL as a declared run: scaling, pre-training, private fine-tuning, sampling.

Reference: paper 000, algorithms 1 and 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, get_args

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlConfig, RowPart
from distributed_privrl.methods.privorl.curiosity import NovelUpdateFactory
from distributed_privrl.methods.privorl.pretraining import (
    Pretrainer,
    PretrainerSpec,
    PublicRows,
    coding_digest,
    pretraining_key,
)
from distributed_privrl.methods.privorl.sampling import ChunkDrawer, Sampler, SamplerSpec
from distributed_privrl.methods.privorl.scaling import public_encoder
from distributed_privrl.methods.privorl.update import (
    DiffusionUpdate,
    Synthesizer,
    private_network,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint, save_checkpoint
from distributed_privrl.rounds.worker import ShardSource
from distributed_privrl.stages.bounding import find_bounds
from distributed_privrl.stages.charging import declared_units
from distributed_privrl.stages.context import Release, RunContext
from distributed_privrl.stages.devices import check_device, device_of
from distributed_privrl.stages.encoders import check_bounds_named, search_ranges
from distributed_privrl.stages.method import DeclaredMethod, FirstRelease, Released, StagePlan
from distributed_privrl.stages.plan import check_relation, left_for_rounds
from distributed_privrl.stages.round_plan import RoundPlan, make_plan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds
from distributed_privrl.updates.parameters import FlatParameters

PRETRAINED = "pretrained.safetensors"
START = "start.safetensors"
TRAINED = "rounds.safetensors"
SYNTHETIC = "synthetic"
STEPS_A_CALL = 50


class Rows(PublicRows, Protocol):
    """Reads and encodes what the model learns from; picklable, holds no arrays."""

    @property
    def encoder(self) -> str:
        """JSON of what encodes the rows."""
        ...

    def shard(self, ref: ShardRef) -> ShardSource:
        """Return the source of a worker's sensitive rows."""
        ...


class Bounded(Protocol):
    """Finds, with noise and charged, what a drawer keeps to."""

    def find(self, context: RunContext, units: UnitCount) -> tuple[ChunkDrawer, Stage]:
        """Return the drawer that keeps to it, and the certificate's stage."""
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
        curiosity_rate: share of a private round that is the model's own samples.
        bounded: finds, with noise and charged, what the drawer keeps to; None: nothing.
    """

    rows: Rows
    synthesizer: Synthesizer
    drawer: ChunkDrawer
    release: Callable[[Path, ChunkDrawer], Release]
    all_rows: bool = False
    most_rows: int | None = None
    curiosity_rate: float = 0.0
    bounded: Bounded | None = None


def plan_rounds(
    config: PrivorlConfig, units: UnitCount | None = None, *, curiosity_rate: float = 0.0
) -> RoundPlan:
    """Return the plan of the rounds, for what is left of epsilon; opens no data.

    Args:
        config: of the run.
        units: how many there are; None: as declared.
        curiosity_rate: see `Parts`.

    Raises:
        ConfigError: settings do not fit together, or the number of units is not declared or too
            small for what is found before the rounds.
        UnsafeError: delta is not below 1/units.
    """
    check_config(config)
    units = declared_units(config.data) if units is None else units
    config.check_units(units.value)
    return make_plan(
        config.privacy,
        config.training,
        unit=config.data.unit,
        units=units,
        spent=_charged_before(config),
        curiosity_rate=curiosity_rate,
    )


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        parts: of the variant, with bounds and a support that are public or paid for.
    """

    ranges: Bounds | None
    parts: Parts


@dataclass(frozen=True, kw_only=True)
class PrivorlMethod(DeclaredMethod[World]):
    """A variant of PrivORL.

    Args:
        config: of the run.
        parts_of: from the store and the encoder of transitions to the variant's parts.
        check_data: refuses datasets that the variant cannot learn from.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; scaling from public facts, or from
    quantiles found with noise (event ``pure_dp``); the number of units declared or counted with
    noise; the support that draws keep to, if any, found with noise (event ``discrete_laplace``);
    beyond that, sensitive rows touch the parameters through private rounds alone (event
    ``poisson_gaussian``); what is drawn from them is post-processing.
    """

    config: PrivorlConfig
    parts_of: Callable[[DatasetStore, TransitionEncoder], Parts]
    check_data: Callable[[DatasetStore], None] | None = None

    def check(self, context: RunContext) -> World:
        """Return the variant's parts; see `DeclaredMethod.check`."""
        config = self.config
        if self.check_data is not None:
            self.check_data(context.store)
        check_config(config)
        check_device(config.runtime, context.executor)
        relation = Relation(config.privacy.relation)
        ranges = search_ranges(config.data, context.store, relation=relation)
        parts = self._parts(context, ranges)
        parts.synthesizer.build(config.seed)  # what cannot be built is refused before any charge
        return World(ranges=ranges, parts=parts)

    def _parts(self, context: RunContext, bounds: Bounds | None) -> Parts:
        return self.parts_of(context.store, public_encoder(self.config, context.store, bounds))

    def first_releases(self, world: World, context: RunContext) -> tuple[FirstRelease[World], ...]:
        """Return the bounds and the support, those that are found with noise."""
        found = []
        if world.ranges is not None:
            found.append(FirstRelease(draw=partial(self._find_bounds, context)))
        if world.parts.bounded is not None:
            found.append(FirstRelease(draw=partial(self._find_support, context)))
        return tuple(found)

    def _find_bounds(
        self, context: RunContext, world: World, units: UnitCount
    ) -> tuple[World, Stage]:
        relation = Relation(self.config.privacy.relation)
        assert world.ranges is not None
        bounds, stage = find_bounds(
            self.config.data, context, world.ranges, relation=relation, units=units
        )
        return replace(world, parts=self._parts(context, bounds)), stage

    def _find_support(
        self, context: RunContext, world: World, units: UnitCount
    ) -> tuple[World, Stage]:
        assert world.parts.bounded is not None
        drawer, stage = world.parts.bounded.find(context, units)
        return replace(world, parts=replace(world.parts, drawer=drawer)), stage

    def stages(self, world: World, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds."""
        rate = world.parts.curiosity_rate
        plan = plan_rounds(self.config, units, curiosity_rate=rate)
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
        _draw_rows(self.config, context, parts)
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
    public_parts = getattr(config.model, "public_parts", ())
    if set(public_parts) == set(get_args(RowPart)):
        raise ConfigError("model.public_parts has all parts of a row: nothing is left to learn")
    if public_parts and not config.training.pretraining.steps:
        raise ConfigError(
            f"model.public_parts={list(public_parts)} need public pre-training: set"
            " training.pretraining.steps above 0, or leave them out"
        )
    if config.privacy.epsilon is not None:
        left_for_rounds(config.privacy.epsilon, _charged_before(config))
    elif config.data.charged_epsilon:
        raise ConfigError(
            "data.units must be a number and data.bounds public when privacy.epsilon is null"
        )
    elif config.charged_before:
        raise ConfigError(
            "training.sampling.support is found with noise: leave it out when privacy.epsilon is"
            " null"
        )
    check_bounds_named(config.data)


def _charged_before(config: PrivorlConfig) -> float:
    return config.data.charged_epsilon + sum(config.charged_before.values())


def _pretrain(config: PrivorlConfig, context: RunContext, parts: Parts) -> None:
    """Algorithm 1, lines 2 to 12; algorithm 2, lines 3 to 18."""
    settings = config.training.pretraining
    coding, kept = coding_digest(parts.rows.encoder, parts.synthesizer), None
    if settings.keep is not None:
        key = pretraining_key(
            public={name: inspect(context.store, name).fingerprint for name in config.data.public},
            coding=coding,
            config=settings,
            seed=config.seed,
        )
        kept = settings.keep.absolute() / f"{key}.safetensors"
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
    # On a GPU it takes a worker's place; on CPUs it waits for nobody.
    service = spec.device == "cpu"
    group = context.executor.start(Pretrainer, [spec], repeat_lost_calls=True, service=service)
    total = settings.steps
    done = group.call("progress")[0]
    while done < total:
        done = group.call("advance", {"steps": STEPS_A_CALL})[0]
        loss = group.call("loss")[0]
        note = "" if loss is None else f"loss on public rows {loss:.4g}"
        context.progress("public pre-training", done, total, note)
    group.close()


def _fine_tune(config: PrivorlConfig, context: RunContext, parts: Parts, plan: RoundPlan) -> None:
    """Algorithm 1, line 13, and algorithm 2, line 19: private rounds over the sensitive units."""
    training = config.training

    def update(clip_norm: float | None) -> DiffusionUpdate:
        return DiffusionUpdate(
            synthesizer=parts.synthesizer,
            seed=config.seed,
            clip_norm=clip_norm,
            micro_batch_rows=training.micro_batch_rows,
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


def _draw_rows(config: PrivorlConfig, context: RunContext, parts: Parts) -> None:
    """Draw the synthetic rows by samplers in parallel; chunks that exist are kept."""
    count = config.runtime.workers
    specs = [
        SamplerSpec(
            run_id=context.run_id,
            checkpoint=context.folder / TRAINED,
            pretrained=context.folder / PRETRAINED,
            folder=context.folder / SYNTHETIC,
            synthesizer=parts.synthesizer,
            drawer=parts.drawer,
            seed=config.seed,
            index=index,
            count=count,
            device=device_of(config.runtime),
        )
        for index in range(count)
    ]
    samplers = context.executor.start(Sampler, specs, repeat_lost_calls=True)
    total = left = parts.drawer.count
    while left:
        left = sum(samplers.call("advance"))
        context.progress("sampling", total - left, total)
    samplers.close()
