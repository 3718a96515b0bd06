"""The ladder's cells: one rung in one maze, by the grid, kept and committed one by one."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cells, harness, utility_table
from benchmarks.harness import Result
from benchmarks.protocol import grid_judge, ladder
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.protocol.ladder import Admission
from benchmarks.protocol.rows import Rows, read_rows
from benchmarks.utility_cells import Cell as Release
from benchmarks.utility_scales import MAZE_TABLES
from benchmarks.utility_tasks import FAMILIES, TASKS
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import MAZES

NAME = "utility_protocol_ladder"
FOLDER = harness.RESULTS / "protocol"
"""Finished cells, each a small file that is committed."""

TABLE = MAZE_TABLES["privorl_n"]
JUDGE = "grid"
PUBLIC_MAZES = FAMILIES[1]
"""Sensitive mazes are opened by registration alone; the ladder has no need of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One rung in one maze, by the grid.

    Args:
        maze: a public one.
        rung: of the ladder.
        scale: of recordings and generators.
    """

    maze: str
    rung: str
    scale: str

    @property
    def name(self) -> str:
        """Name of the cell's file."""
        rung = self.rung.replace(" ", "_").replace(",", "")
        return f"ladder-{self.scale}-{self.maze}-{JUDGE}-{rung}"

    @property
    def settings(self) -> dict[str, Any]:
        """What a figure depends on."""
        return {
            **dataclasses.asdict(self),
            "judge": JUDGE,
            "grid": dataclasses.asdict(GridSettings()),
            "steps": TABLE.scales[self.scale].steps,
            "fewer": ladder.FEWER,
            "blur": ladder.BLUR,
        }


def run_cell(cell: Cell, folder: Path, work: Path) -> dict[str, Any]:
    """Return what is kept of a cell, or judge it now and keep it.

    A kept cell of other settings is judged again.

    Privacy: rows are simulated and public; nothing is charged but a generator's own ledger.
    """
    return cells.kept_of(folder / f"{cell.name}.json", cell.settings, lambda: _judged(cell, work))


def _kept(cell: Cell, folder: Path) -> dict[str, Any] | None:
    return cells.found_of(folder / f"{cell.name}.json", cell.settings)


def _judged(cell: Cell, work: Path) -> dict[str, Any]:
    clock = time.process_time()
    rows = rung_rows(cell, work)
    mean, shifts = grid_judge.judge(rows, MAZES[cell.maze], GridSettings())
    return {
        **dataclasses.asdict(cell),
        "judge": JUDGE,
        "rows": len(rows),
        **dataclasses.asdict(mean),
        "shifts": [one.normalised for one in shifts],
        "cpu_s": round(time.process_time() - clock),
        "commit": harness.machine()["commit"],
    }


def rung_rows(cell: Cell, work: Path) -> Rows:
    """Return the rows of a rung, recorded or released where they are not there."""
    scale, store = TABLE.scales[cell.scale], cells.store_of(work)
    release = Release(maze=cell.maze, variant=ladder.PRETRAINED, epsilon=1.0)
    if cell.rung == ladder.PRETRAINED:
        utility_table.collect_tasks((cell.maze, *release.public), scale, store)
        utility_table.run_cell(release, TABLE, scale, work, releases_only=True)
        return read_rows(store, release.output)
    utility_table.collect_tasks((cell.maze,), scale, store)
    return ladder.MADE[cell.rung](
        read_rows(store, TASKS[cell.maze].dataset), Streams(cells.DATA_SEED)
    )


def result_of(wanted: Sequence[Cell], folder: Path) -> Result:
    """Return the table: what is kept, blank what is not; and whether the judge is admitted."""
    lines, wrong = [], {}
    for maze in dict.fromkeys(cell.maze for cell in wanted):
        found = {cell.rung: _kept(cell, folder) for cell in wanted if cell.maze == maze}
        lines += [_line(maze, rung, row) for rung, row in found.items()]
        scores = {rung: row["normalised"] for rung, row in found.items() if row is not None}
        wrong[maze] = ladder.disorder(scores)
    verdicts = [
        f"{maze}: {'; '.join(reasons) if reasons else 'ordered'}."
        for maze, reasons in wrong.items()
    ]
    return Result(
        cells=lines,
        ratios={},
        facts={"judge": JUDGE, "ordered": {maze: not reasons for maze, reasons in wrong.items()}},
        notes=[
            "Points of 100 (0 uniform forces, 100 the planner) from 200 stratified starts, exact"
            " in the true simulator; the mean over shifts of the grid, each shift's beside it."
            " One recording a maze. A blank cell was not run.",
            *verdicts,
        ],
    )


def _line(maze: str, rung: str, row: dict[str, Any] | None) -> dict[str, Any]:
    names = ("rows", "normalised", "shifts", "reach", "hold", "cpu_s")
    values = {name: "" if row is None else row[name] for name in names}
    return {"maze": maze, "judge": JUDGE, "rung": rung, **values}


def cells_of(mazes: Sequence[str], scale: str) -> list[Cell]:
    """Return every rung of the ladders of some mazes."""
    return [Cell(maze=maze, rung=rung, scale=scale) for maze in mazes for rung in ladder.RUNGS]


def admission_of(mazes: Sequence[str], scale: str, folder: Path) -> Admission:
    """Return that the judge has ordered the kept ladders of all these mazes; the last one's.

    Raises:
        NotAdmittedError: a rung is missing, or two do not lie as they must.
    """
    found = {}
    for maze in mazes:
        rows = {cell.rung: _kept(cell, folder) for cell in cells_of([maze], scale)}
        scores = {rung: row["normalised"] for rung, row in rows.items() if row is not None}
        found[maze] = Admission(f"{JUDGE} in {maze}", scores)
    return found[mazes[-1]]
