"""Gates on private rounds over documents."""

from pathlib import Path

from tests.gates.whole_runs import WholeRun, gate_whole_run
from tests.worlds.notes import PEOPLE, LearnedNotes


def gate_certified_documents(folder: Path) -> None:
    """A run of `dp_fine_tuning` does what it certifies."""
    world = LearnedNotes(folder).budget()
    gate_whole_run(
        WholeRun(
            config=world.config(),
            ledger=world.ledger,
            start=lambda: world.run(key=None),
            stages=["fine-tune"],
            units=PEOPLE,
            rows=(False, 1),
        )
    )
