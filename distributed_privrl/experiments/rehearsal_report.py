"""What a rehearsal found, as JSON values and in words."""

import itertools
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
        strengths: share of pairs that are kept, by how strong they are, strongest first.
    """

    rows: str
    units: int
    epsilon: float | None
    verdict: str | None
    sections: Mapping[str, Sequence[Survived]]
    strengths: Sequence[Survived]

    @property
    def promise(self) -> str:
        """Say relations of which strength survived, and that those of the table may be weaker.

        Relations of a strength survived where half of them did, and half of all stronger ones.
        """
        names = [one.name.partition(" (")[0] for one in self.strengths]
        kept = len(list(itertools.takewhile(lambda one: one.kept, self.strengths)))
        if not names:
            return "no two of these columns go together: nothing is said of relations"
        if not kept:
            said = "relations of no strength survive"
        elif kept == len(names):
            said = f"relations of every strength that was tried survive: {', '.join(names)}"
        else:
            said = (
                f"relations of {', '.join(names[:kept])} survive; of weaker ones"
                f" ({', '.join(names[kept:])}) expect little"
            )
        return f"{said}. A rehearsal does not know how strong those of your table are"

    def facts(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"promise": self.promise}

    def text(self) -> str:
        """Return all of it for people, a line a figure."""
        cost = "without privacy" if self.epsilon is None else f"at epsilon {self.epsilon:.4g}"
        lines = [f"rehearsed on {self.rows}, {self.units} units, {cost}"]
        lines += [f"verdict of the plan: {self.verdict}"] * (self.verdict is not None)
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
