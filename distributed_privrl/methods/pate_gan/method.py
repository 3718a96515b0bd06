"""`pate_gan` and `pre_pate_gan` as declared runs: public pre-training, votes, rows.

Reference: Jordon, Yoon and van der Schaar, "PATE-GAN: generating synthetic data with differential
privacy guarantees" (ICLR 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distributed_privrl.core.errors import SpentError
from distributed_privrl.core.progress import SAMPLING
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.pate_gan.config import AnyPateGanConfig, PrePateGanConfig
from distributed_privrl.methods.pate_gan.plan import (
    VotePlan,
    check_config,
    plan_effort,
    votes_plan,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.coding import foreseen_encoder, public_encoder
from distributed_privrl.stages.context import RunContext, SyntheticTransitions
from distributed_privrl.stages.encoders import foreseen_columns, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan

if TYPE_CHECKING:
    from distributed_privrl.methods.pate_gan.game import GameSpec
    from distributed_privrl.methods.pate_gan.program import VotesProgram

CHECKPOINT = "votes.safetensors"
STAGE = "votes"


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        encoder: of rows, by bounds that are public or paid for.
        plan: that is drawn by; None until it is made.
    """

    ranges: Bounds | None
    encoder: TransitionEncoder
    plan: VotePlan | None = None


@dataclass(frozen=True)
class PateGanMethod(DeclaredMethod[World]):
    """Independent transitions from a generator that learned by noisy votes of teachers.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; each unit, with all of its rows,
    sits with one teacher, so that it moves a count of votes by `votes.count_sensitivity` at most;
    events: one ``discrete_laplace`` or ``discrete_gaussian`` for each generated row that is voted
    on; bounds and the number of units as in any method. Generator and student know rows by the
    noisy counts alone; they, and what is drawn, are post-processing.
    """

    config: AnyPateGanConfig

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_config(self.config)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds, if they are found with noise."""
        return first_bounds(self.config.data, self._ask_bounds)

    def check(self, context: RunContext) -> World:
        """Return the encoder; see `DeclaredMethod.check`."""
        ranges = search_ranges(self.config.data, context.store, relation=self.relation)
        return World(ranges=ranges, encoder=public_encoder(self.config, context.store, ranges))

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        assert world.ranges is not None
        asked = bounds_question(
            self.config.data, context, world.ranges, relation=self.relation, units=units
        )
        store = context.store
        return asked.then(
            lambda found: replace(world, encoder=public_encoder(self.config, store, found))
        )

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the votes."""
        return self._stages(units, None if world is None else world.encoder)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same, with their work for the columns that public facts tell."""
        known = foreseen_columns(self.config.data, store)
        encoder = None if known is None else foreseen_encoder(self.config, known)
        return self._stages(units, encoder)

    def _stages(self, units: UnitCount, encoder: TransitionEncoder | None) -> tuple[StagePlan, ...]:
        plan = votes_plan(self.config, units, spent=self.spent)
        if encoder is not None:
            plan = replace(plan, effort=plan_effort(self.config, plan.steps, encoder.width))
        return (StagePlan(name=STAGE, plan=plan),)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the plan."""
        plan = stages[0].plan
        assert isinstance(plan, VotePlan)
        return replace(world, plan=plan)

    def before(self, world: World, context: RunContext) -> None:
        """Pre-train generator and student on public rows, where the method does."""
        if isinstance(self.config, PrePateGanConfig):
            from distributed_privrl.methods.pate_gan.pretraining import pretrain

            pretrain(self.config, context, world.encoder)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Ask for votes, and play the game by the answers."""
        from distributed_privrl.methods.pate_gan.program import VotesSpec
        from distributed_privrl.methods.pate_gan.teachers import TeacherSpec, TeacherWorker
        from distributed_privrl.rounds.worker import SecretOfRun
        from distributed_privrl.stages.training import StepsSpec, release_in_steps

        plan = stage.plan
        assert isinstance(plan, VotePlan)
        config, data, game = self.config, self.config.data, self.game(world, context)
        (ref,) = shard_refs(
            context.store,
            data.sensitive,
            count=1,  # workers choose their teachers' units by the run's secret
            unit=data.unit,
            max_rows_per_unit=data.max_length,
        )
        workers = [
            TeacherSpec(
                ref=ref,
                encoder=game.encoder,
                secret=SecretOfRun(
                    run_id=context.run_id,
                    ledger=None if plan.budget is None else context.ledger,
                    insecure_key=context.insecure_key,
                ),
                model=config.model,
                training=config.training,
                seed=config.seed,
                student=game.student,
                index=index,
                workers=config.runtime.most_workers,
                blocks=plan.blocks_for(config.runtime),
            )
            for index in range(config.runtime.most_workers)
        ]
        steps = StepsSpec(
            worker_cls=TeacherWorker,
            workers=workers,
            program=VotesSpec(game=game, release=plan.release),
            checkpoint=context.folder / CHECKPOINT,
            stage=STAGE,
        )
        if not release_in_steps(steps, config, context, plan):
            raise SpentError("crashes used up all steps before a vote was kept: start a new run")
        return world

    def game(self, world: World, context: RunContext) -> GameSpec:
        """Return what the public game is built from."""
        from distributed_privrl.methods.pate_gan.game import GameSpec
        from distributed_privrl.methods.pate_gan.pretraining import pretrained

        return GameSpec(
            model=self.config.model,
            training=self.config.training,
            encoder=world.encoder.to_json(),
            seed=self.config.seed,
            start=pretrained(context) if isinstance(self.config, PrePateGanConfig) else None,
        )

    def played(self, world: World, context: RunContext) -> VotesProgram:
        """Return the program of a finished run, with all that was released.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        from distributed_privrl.methods.pate_gan.program import VotesSpec
        from distributed_privrl.rounds.checkpoint import load_checkpoint

        program = VotesSpec(game=self.game(world, context), release=None)()
        tensors, state = load_checkpoint(
            context.folder / CHECKPOINT, run_id=context.run_id, stage="rounds"
        )
        program.restore(tensors, state.round_index)
        return program

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic rows from the generator's moving average."""
        config, streams = self.config, Streams(self.config.seed).child(context.stream)
        most = config.training.sampling.chunk_rows

        def chunks() -> Iterator[Transitions]:
            from distributed_privrl.methods.pate_gan.game import Drawer

            generator = self.played(world, context).game.pair.generator
            drawer = Drawer(config.model, world.encoder, generator.optimiser.ema)
            for index, start in enumerate(range(0, config.output.size, most)):
                context.progress(SAMPLING, start, config.output.size)
                rows = min(most, config.output.size - start)
                drawn = drawer.rows(rows, streams.numpy(f"chunk/{index}"))
                yield world.encoder.decode(drawn)
            context.progress(SAMPLING, config.output.size, config.output.size)

        return Released(release=SyntheticTransitions(chunks=chunks))
