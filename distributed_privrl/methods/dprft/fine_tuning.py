"""`dp_fine_tuning` as a declared run: private rounds of a language model's own loss, then texts.

The baseline that DP-RFT is compared with: workers read the corpus, and each document adds one
clipped gradient to a round.

Reference: Li et al., "Large language models can be strong differentially private learners" (2022);
Abadi et al., "Deep learning with differential privacy" (2016), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.data.corpus_datasets import corpus_of
from distributed_privrl.data.corpus_rows import check_documents
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.methods.dprft.config import FineTuningConfig
from distributed_privrl.methods.dprft.effort import fine_tuning_effort, size_of
from distributed_privrl.methods.dprft.plan import NOT_JUDGED, PUBLIC_LANGUAGE, check_corpus_keys
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import ReleasedFiles, RunContext
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.plan import check_relation
from distributed_privrl.stages.round_plan import RoundPlan, make_plan
from distributed_privrl.stages.round_verdict import round_noise
from distributed_privrl.text.extra import text_package

INITIAL, TRAINED, MODEL = "initial.safetensors", "rounds.safetensors", "model"
STAGE = "fine-tune"


@dataclass(frozen=True)
class FineTuningMethod(DeclaredMethod[CorpusRef]):
    """A language model fine-tuned on a corpus that workers alone read; its world: where that lies.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``. A unit that takes part in a round
        adds the gradient of one of its pieces of text, clipped to ``training.clip_norm`` in L2,
        over all parameters at once. Event: ``poisson_gaussian``. Model and texts are
        post-processing of the rounds and of public prompts.
    """

    config: FineTuningConfig
    needs_successors = False
    has_columns = False

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_corpus_keys(self.config)
        check_relation(self.config.privacy)

    def check(self, context: RunContext) -> CorpusRef:
        """Return where the corpus lies; see `DeclaredMethod.check`."""
        text_package("transformers")
        from distributed_privrl.methods.dprft.writing import prompt_template

        prompt_template(self.config)
        return corpus_of(context.store, self.config.data.sensitive)

    def stages(self, world: CorpusRef | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds."""
        config = self.config
        plan = make_plan(
            config.privacy,
            config.training,
            unit=config.data.unit,
            units=units,
            spent=self.spent,
            sum_slack=0.0,  # each unit's vector is rounded by itself
        )
        size, noise = size_of(config.model.language), {}
        if size is not None and plan.mechanism is not None:
            noise = {"round_noise": round(round_noise(plan, round(size.weights)), 4)}
        plan = replace(
            plan,
            details={**plan.details, **noise},
            verdict=NOT_JUDGED,
            assumptions=(*plan.assumptions, PUBLIC_LANGUAGE),
            effort=fine_tuning_effort(config),
        )
        return (StagePlan(name=STAGE, plan=plan),)

    def check_machine(self, world: CorpusRef, context: RunContext) -> None:
        """Have workers look at devices and documents; find the model, make and code the prompts."""
        from distributed_privrl.methods.dprft.language import language_of
        from distributed_privrl.methods.dprft.tokens import TokenCoding
        from distributed_privrl.methods.dprft.writing import gate_of, prompt_template, prompts_of
        from distributed_privrl.stages.devices import check_device, check_own_device

        check_own_device(self.config.runtime)
        gate_of(self.config)
        check_device(self.config.runtime, context.executor)
        check_documents(
            context.store,
            self.config.data.sensitive,
            workers=self.config.runtime.most_workers,
            executor=context.executor,
        )
        template = prompt_template(self.config)
        language = language_of(self.config, template, progress=context.progress)
        piece = self.config.training.most_tokens
        TokenCoding.of(language, prompts_of(self.config), piece=piece)

    def work(self, stage: StagePlan, world: CorpusRef, context: RunContext) -> CorpusRef:
        """Train in private rounds, from the model as it was before."""
        from distributed_privrl.methods.dprft.language import language_of
        from distributed_privrl.methods.dprft.tokens import (
            NetworkOf,
            NextTokenLoss,
            NextTokens,
            StoredTexts,
            TokenCoding,
        )
        from distributed_privrl.methods.dprft.writing import prompt_template, prompts_of
        from distributed_privrl.stages.devices import device_of
        from distributed_privrl.stages.training import (
            TrainingSpec,
            train_in_rounds,
            write_initial,
        )
        from distributed_privrl.updates.gradient import GradientUpdate

        assert isinstance(stage.plan, RoundPlan)
        config = self.config
        language = language_of(config, prompt_template(config))
        write_initial(context.folder / INITIAL, NextTokens(language.model), context)
        coding = TokenCoding.of(language, prompts_of(config), piece=config.training.most_tokens)

        def source(ref: ShardRef) -> StoredTexts:
            return StoredTexts(ref=ref, corpus=world, coding=coding)

        def update(clip_norm: float | None) -> GradientUpdate:
            return GradientUpdate(
                build=NetworkOf.of(language, device_of(config.runtime)),
                row_loss=NextTokenLoss(),
                clip_norm=clip_norm,
                micro_batch_rows=config.training.rows_at_once(config.runtime),
                per_unit_gradients="formed",
            )

        spec = TrainingSpec(
            source=source,
            local_update=update,
            initial=context.folder / INITIAL,
            checkpoint=context.folder / TRAINED,
        )
        train_in_rounds(spec, config, context, stage.plan)
        return world

    def finish(self, world: CorpusRef, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Keep the fine-tuned model, and return texts of it."""
        from distributed_privrl.methods.dprft.language import language_of
        from distributed_privrl.methods.dprft.tokens import NextTokens
        from distributed_privrl.methods.dprft.writing import (
            drawn_texts,
            prompt_template,
            untuned_writers,
            write_passing,
        )
        from distributed_privrl.stages.training import load_trained
        from distributed_privrl.text.pretraining import keep

        def save(path: Path) -> None:
            language = language_of(self.config, prompt_template(self.config))
            load_trained(context.folder / TRAINED, NextTokens(language.model), context)
            keep(language, context.folder / MODEL)
            streams = Streams(self.config.seed).child(context.stream)
            write_passing(self.config, drawn_texts(self.config, language, streams), path)

        files = ReleasedFiles(save=save, beside=untuned_writers(self.config))
        return Released(release=files)
