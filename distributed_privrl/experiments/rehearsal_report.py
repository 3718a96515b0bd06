"""What a rehearsal found, as JSON values and in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.files import write_atomically
from distributed_privrl.evaluation.survival import Survived


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What survived of rows that stood in.

    Args:
        rows: what stood in: invented rows, or the id of a public dataset.
        units: how many there were.
        epsilon: of the run; None: it was not private.
        verdict: of its plan; None: it has none.
        sections: what became of columns, pairs, rare categories, lengths and the reward, by title.
        strengths: share of pairs that are kept, by strength and kinds of columns, strongest first.
    """

    rows: str
    units: int
    epsilon: float | None
    verdict: str | None
    sections: Mapping[str, Sequence[Survived]]
    strengths: Sequence[Survived]

    @property
    def promise(self) -> str:
        """Say how many pairs are kept by strength and kind, and that real ones may fade sooner."""
        if not self.strengths:
            said = "no two of these columns go together: nothing is said of relations"
        else:
            said = f"pairs that are kept: {'; '.join(one.name for one in self.strengths)}"
        return (
            f"{said}. A rehearsal does not know how strong those of your table are. Real ones,"
            " above all of categories of many values, may be lost where invented ones of that"
            " strength are kept"
        )

    def facts(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"promise": self.promise}

    def text(self) -> str:
        """Return all of it for people, a line a figure."""
        cost = "without privacy" if self.epsilon is None else f"at epsilon {self.epsilon:.4g}"
        lines = [f"rehearsed on {self.rows}, {self.units} units, {cost}"]
        if self.verdict is not None:
            first, *others = self.verdict.split("; ")
            lines += [f"verdict of the plan: {first}", *(f"  {one}" for one in others)]
        by_strength = {"pairs by their association, share that is kept": self.strengths}
        for title, figures in {**self.sections, **by_strength}.items():
            kept = sum(one.kept for one in figures)
            lines += ["", f"{title}: {kept} of {len(figures)} kept"]
            lines += [
                f"  {'kept' if one.kept else 'LOST'}  {one.name}: {one.before:.3f} ->"
                f" {one.after:.3f}"
                for one in figures
            ]
        return "\n".join([*lines, "", self.promise]) + "\n"


def write_rehearsal(found: Rehearsal, out: Path) -> None:
    """Write ``rehearsal.txt`` and ``rehearsal.json`` into a folder."""
    write_atomically(out / "rehearsal.txt", found.text())
    write_atomically(out / "rehearsal.json", json.dumps(found.facts(), indent=2) + "\n")
