"""How much work a stage is, from public facts alone; `experiments.speeds` makes minutes of it."""

from dataclasses import dataclass, replace
from typing import Self

from distributed_privrl.agents.work import StepWork


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Work by its kind.

    Networks are as good as dense: a row costs as much as there are weights, times how often each is
    used. That is right within a factor of two or three.

    Args:
        joint_counts: joint counts that are chosen, measured and estimated, as many as it takes of
            tables of few columns.
        rounds: private rounds.
        private_rows: rows of clipped gradients times weights, workers together.
        learned_steps: steps of plain training times networks: what they take beside their rows.
        learned_rows: rows of plain training times weights.
        drawn_rows: rows that are drawn times weights.
        memory: bytes beside those of a small run.
    """

    joint_counts: float = 0.0
    rounds: float = 0.0
    private_rows: float = 0.0
    learned_steps: float = 0.0
    learned_rows: float = 0.0
    drawn_rows: float = 0.0
    memory: float = 0.0

    @classmethod
    def of_steps(cls, steps: float, rows: int, work: StepWork) -> Self:
        """Return the work of plain training.

        Args:
            steps: gradient steps.
            rows: of a batch.
            work: of a step.
        """
        return cls(learned_steps=steps * work.networks, learned_rows=steps * rows * work.weights)

    def by_rows(self, factor: float) -> "Effort":
        """Return the work where each row uses the weights ``factor`` times as often."""
        return replace(
            self,
            private_rows=factor * self.private_rows,
            learned_rows=factor * self.learned_rows,
            drawn_rows=factor * self.drawn_rows,
        )

    def __add__(self, other: "Effort") -> "Effort":
        """Return the work of both."""
        return Effort(
            joint_counts=self.joint_counts + other.joint_counts,
            rounds=self.rounds + other.rounds,
            private_rows=self.private_rows + other.private_rows,
            learned_steps=self.learned_steps + other.learned_steps,
            learned_rows=self.learned_rows + other.learned_rows,
            drawn_rows=self.drawn_rows + other.drawn_rows,
            memory=self.memory + other.memory,
        )
