"""`dprft` as a declared run: one stage of votes, with the tuning inside it, then texts.

Reference: paper 003.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.data.corpus_datasets import corpus_of
from distributed_privrl.data.corpus_rows import check_documents
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.plan import (
    VotePlan,
    check_config,
    rule_of,
    similarity_of,
    vote_plan,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import ReleasedFiles, RunContext
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.extra import text_package
from distributed_privrl.text.minilm import MiniLmEncoder, check_minilm
from distributed_privrl.text.scoring import Encoder

ANSWERS, TUNING = "answers.safetensors", "tuning"
STAGE = "votes"


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        corpus: where the documents are.
        plan: that votes are drawn by; None until it is made.
    """

    corpus: CorpusRef
    plan: VotePlan | None = None


@dataclass(frozen=True)
class DprftMethod(DeclaredMethod[World]):
    """A language model tuned by private votes from a corpus that it never reads.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; a unit moves what a round releases
        by the rule's sensitivity; events: ``discrete_gaussian``, one for each sample that may be
        scored, or each query, or one. All of them are charged, whatever the training used. Model,
        texts and figures of the steps are post-processing of the answers and of public prompts.
    """

    config: DprftConfig
    needs_successors = False
    has_columns = False

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_config(self.config)

    def check(self, context: RunContext) -> World:
        """Return where the corpus lies; see `DeclaredMethod.check`."""
        text_package("transformers")
        from distributed_privrl.methods.dprft.writing import prompt_template

        if self.config.training.by in ("grpo", "rloo"):
            from distributed_privrl.text.trl_training import check_machinery

            check_machinery()
        prompt_template(self.config)
        if self.config.model.encoder == "minilm":
            check_minilm()
        return World(corpus=corpus_of(context.store, self.config.data.sensitive))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the votes."""
        return (StagePlan(name=STAGE, plan=vote_plan(self.config, units, spent=self.spent)),)

    def check_machine(self, world: World, context: RunContext) -> None:
        """Have workers look at the documents, find the device and the model, make the prompts."""
        from distributed_privrl.methods.dprft.language import language_of
        from distributed_privrl.methods.dprft.writing import gate_of, prompt_template, prompts_of
        from distributed_privrl.stages.devices import check_own_device

        check_own_device(self.config.runtime)
        check_documents(
            context.store,
            self.config.data.sensitive,
            workers=self.config.runtime.most_workers,
            executor=context.executor,
        )
        gate_of(self.config)
        language_of(self.config, prompt_template(self.config), progress=context.progress)
        prompts_of(self.config)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the plan."""
        plan = stages[0].plan
        assert isinstance(plan, VotePlan)
        return replace(world, plan=plan)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Tune the model, whose samples voters score."""
        from distributed_privrl.methods.dprft.voter import Voter, VoterSpec
        from distributed_privrl.stages.training import QueriesSpec, answer_queries

        assert world.plan is not None
        workers, rule = self.config.runtime.most_workers, rule_of(self.config)
        specs = [
            VoterSpec(
                ref=replace(world.corpus, index=index, count=workers),
                encoder=self._encoder,
                similarity=similarity_of(self.config),
                rule=rule,
            )
            for index in range(workers)
        ]
        spec = QueriesSpec(
            worker_cls=Voter,
            workers=specs,
            method="vector_sum" if rule is None else "votes",
            release=world.plan.release,
            checkpoint=context.folder / ANSWERS,
            stage=STAGE,
        )
        answer_queries(
            spec,
            self.config,
            context,
            world.plan,
            use=lambda server: self._tune(server, world, context),
        )
        return world

    def _tune(self, server: WorkerGroup, world: World, context: RunContext) -> None:
        from distributed_privrl.methods.dprft.scorer import MeanScorer, Queries, VoteScorer
        from distributed_privrl.methods.dprft.training import choose, is_done, tune

        assert world.plan is not None
        folder = context.folder / TUNING
        if is_done(folder):
            return  # a resumed run whose training had ended
        folder.mkdir(mode=0o700, exist_ok=True)
        queries, rule, units = Queries(server), rule_of(self.config), world.plan.units.value
        steps = self.config.training.steps

        def told(done: int) -> None:
            context.progress("tuning", done, steps)

        if rule is None:
            mean = MeanScorer(queries, self._encoder, similarity_of(self.config), units)
            tune(self.config, mean, folder, told=told)
            return
        votes = VoteScorer(queries, self._encoder, rule, units)
        if self.config.training.by == "aug_pe":
            choose(self.config, votes, folder, told=told)
        else:
            tune(self.config, votes, folder, told=told)

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Return texts of the tuned model, and what its steps measured."""
        from distributed_privrl.methods.dprft.steps import step_metrics
        from distributed_privrl.methods.dprft.training import write_texts
        from distributed_privrl.methods.dprft.writing import untuned_writers

        def save(path: Path) -> None:
            write_texts(self.config, context.folder / TUNING, path, stream=context.stream)

        entry = context.ledger.reserved(context.run_id) if certified else None
        steps = () if entry is None else step_metrics(context.folder / TUNING, entry, STAGE)
        files = ReleasedFiles(save=save, beside=untuned_writers(self.config))
        return Released(release=files, metrics=steps)

    @property
    def _encoder(self) -> Encoder:
        if self.config.model.encoder == "minilm":
            return MiniLmEncoder()
        return HashedEncoder(dimension=self.config.model.dimension)
