"""What an evaluation computes from real rows, for ``private/`` alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from distributed_privrl.core.files import remove_file
from distributed_privrl.data.labels import shown_labels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.embedding import EmbeddingMethod
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.agents import Trials, ratio_section, reasons, return_ratios
from distributed_privrl.experiments.comparison import (
    attempted_sections,
    fidelity_section,
    score_trajectories,
    trajectory_section,
)
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.samples import shown_rows
from distributed_privrl.experiments.training import Training
from distributed_privrl.experiments.trials import AGENTS, TRAINING_ON_PRIVATE
from distributed_privrl.experiments.usefulness_overview import TITLE
from distributed_privrl.experiments.usefulness_report import usefulness_sections

RATIOS_FILE = "ratios.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A dataset beside the real rows that it stands for.

    Privacy: computed from real rows without noise, all of it for ``private/``. Whatever goes wrong
    because of what the rows are is a line of the private report: an error that ended the command
    would tell of them.

    Args:
        store: datasets.
        synthetic: id of the dataset.
        reference: id of the real rows.
        public: id of public trajectories for TrajScore.
        embedding: how rows are shown in the plane.
        directory: whose ``private/`` results go to.
        training: how agents are trained.
        trials: agents on the dataset.
        trainers: of those agents.
    """

    store: DatasetStore
    synthetic: str
    reference: str
    public: str | None
    embedding: EmbeddingMethod
    directory: RunDirectory
    training: Training
    trials: Trials
    trainers: Mapping[str, Trainer]

    def sections(self) -> list[Section]:
        """Compute everything, and return the sections of the private report."""
        found = attempted_sections(
            TITLE,
            lambda: usefulness_sections(self.store, real=self.reference, synthetic=self.synthetic),
        )
        found += attempted_sections("Fidelity", self._rows)
        if self.trainers:
            found += attempted_sections("The same agents on the real dataset", self._agents)
        else:
            remove_file(self.directory.private / RATIOS_FILE)
        if self.public is not None:
            self.training.progress("TrajScore", 0, 1)
            found += attempted_sections("TrajScore", self._trajectories)
            self.training.progress("TrajScore", 1, 1)
        return found

    def _rows(self) -> list[Section]:
        real = shown_rows(self.store, self.reference)
        synthetic = shown_rows(self.store, self.synthetic)
        names = shown_labels(self.store.info(self.synthetic))
        scores = fidelity(real, synthetic, names)
        found = {"marginal": scores.marginal, "correlation": scores.correlation}
        self.directory.write_private("scores.json", json.dumps(found, allow_nan=False))
        place = self.training.environment or None
        return [fidelity_section(real, synthetic, names, place, embedding=self.embedding)]

    def _agents(self) -> list[Section]:
        loops = {name: trainer.agent for name, trainer in self.trainers.items()}
        kept = self.directory.make_private() / f"{AGENTS}-on-real-rows"
        theirs = self.training.run(
            self.reference, dict.fromkeys(loops.values()), kept=kept, stage=TRAINING_ON_PRIVATE
        )
        place = self.training.environment
        ratios = return_ratios(self.trials, theirs, place, loops)
        self.directory.write_private(RATIOS_FILE, json.dumps(ratios, allow_nan=False))
        if failed := reasons(theirs):
            self.directory.write_private("failures-on-real-rows.json", json.dumps(failed, indent=2))
        return [ratio_section(self.trials, theirs, place, loops)]

    def _trajectories(self) -> list[Section]:
        public = str(self.public)
        score = score_trajectories(
            self.store, real=self.reference, synthetic=self.synthetic, public=public
        )
        return [trajectory_section(score, public)]
