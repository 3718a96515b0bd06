"""Experts that were trained and have acted, as the source of a dataset."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories

if TYPE_CHECKING:
    from distributed_privrl.agents.expert_policies import ExpertPolicies
    from distributed_privrl.collection.experts_options import ExpertOptions
    from distributed_privrl.collection.experts_training import ExpertPlan

_BINS = 20
_CANDIDATES = 10


@dataclass(kw_only=True)
class TrainedExperts:
    """A recipe whose experts are there, and what they did.

    Args:
        plan: which experts.
        folder: where their blocks are kept.
        simulator: the default environment.
        evaluation_steps: steps at most where policies learned from the data are judged.
    """

    plan: "ExpertPlan"
    folder: Path
    simulator: Any
    evaluation_steps: int
    _returns: list[float] = field(default_factory=list)
    _log_probabilities: list[Any] = field(default_factory=list)

    def trajectories(
        self, *, steps: int, options: "ExpertOptions", streams: Streams
    ) -> Iterator[Trajectories]:
        """Yield the episodes of one block after another, an expert's after another's.

        Args:
            steps: all that there can be.
            options: those of the plan.
            streams: unused: the episodes are made.
        """
        from distributed_privrl.collection.experts_training import read_rows

        self._returns, self._log_probabilities = [], []
        for block in range(len(self.plan.blocks)):
            rows, log_probabilities = read_rows(self.folder, block)
            earned = np.add.reduceat(rows.rewards, rows.offsets[:-1], dtype=np.float64)
            self._returns += earned.reshape(-1, self.plan.trajectories).mean(axis=1).tolist()
            self._log_probabilities.append(log_probabilities)
            yield rows

    def references(self, options: "ExpertOptions") -> Mapping[str, Any]:
        """Return, once all acted, ``experts``, ``reference_returns`` and ``evaluation_returns``.

        ``best`` is what the best of the ten experts earns that earned most in the data, when it
        always does what it prefers.
        """
        if not self._returns:
            return {}
        from distributed_privrl.collection.experts_episodes import (
            greedy_chooser,
            mean_return,
            uniform_chooser,
        )

        policies = self._policies()
        likeliest = np.argsort(self._returns)[::-1][:_CANDIDATES].tolist()
        found: dict[str, dict[str, float]] = {}
        for key, longest in (
            ("reference_returns", self.plan.max_length),
            ("evaluation_returns", self.evaluation_steps),
        ):
            measured = partial(
                mean_return,
                self.simulator,
                episodes=options.reference_episodes,
                max_length=longest,
                streams=self.plan.streams.child(key),
            )
            found[key] = {
                "random": measured(uniform_chooser(self.simulator.actions)),
                "best": max(
                    measured(greedy_chooser(policies.part(expert, expert + 1)))
                    for expert in likeliest
                ),
                "episodes": options.reference_episodes,
                "steps": longest,
            }
        found["reference_returns"]["behaviour"] = float(np.mean(self._returns))
        return {"experts": self._described(), **found}

    def complete(
        self, folder: Path, options: "ExpertOptions", *, public: bool
    ) -> Mapping[str, Any]:
        """Write the policies and the log-probabilities of their actions; return what they earn.

        Args:
            folder: of the new dataset, not yet there for others.
            options: those of the plan.
            public: others may read the files.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        from distributed_privrl.agents import experts

        mode = 0o644 if public else 0o600
        beside = folder / experts.FOLDER
        experts.write_experts(beside, self._policies(), mode=mode)
        experts.write_log_probabilities(beside, np.concatenate(self._log_probabilities), mode=mode)
        return self.references(options)

    def _policies(self) -> "ExpertPolicies":
        from distributed_privrl.agents.expert_policies import ExpertPolicies
        from distributed_privrl.collection.experts_training import policies_path

        blocks = range(len(self.plan.blocks))
        return ExpertPolicies.concatenate(
            [ExpertPolicies.load(policies_path(self.folder, block)) for block in blocks]
        )

    def _described(self) -> dict[str, Any]:
        """Return what is said of the experts in the metadata."""
        from distributed_privrl.agents.experts import ExpertFacts
        from distributed_privrl.collection.experts_grids import GRIDS

        policies = self._policies().part(0, 1)
        facts = ExpertFacts(
            count=self.plan.experts,
            trajectories=self.plan.trajectories,
            minimum_probability=self.plan.minimum_probability,
            max_length=self.plan.max_length,
            shared_policy=policies.conditions is not None,
            log_probabilities=True,
        )
        counts, edges = np.histogram(self._returns, bins=_BINS)
        return {
            **facts.as_metadata(),
            "widths": policies.widths,
            "settings": GRIDS[self.plan.environment].as_metadata(),
            "training": dict(self.plan.training),
            "returns": {
                "mean": float(np.mean(self._returns)),
                "least": min(self._returns),
                "most": max(self._returns),
                "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
            },
        }
