"""The section of a report that names the columns that a table's method counted together."""

import re
from collections.abc import Sequence
from pathlib import Path

from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.data.declared import CategoryKind, FlagKind
from distributed_privrl.data.labels import MISSING, part_names
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.marginals.asked import NEXT
from distributed_privrl.marginals.column import ENDS, STAYS
from distributed_privrl.marginals.stage import CHECKPOINT, STAGE
from distributed_privrl.marginals.together import (
    CorrelatedColumns,
    CountedTogether,
    correlated_from_tensors,
    from_tensors,
)
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import Answer, settled_answer
from distributed_privrl.privacy.units import unit_in_words
from distributed_privrl.rounds.checkpoint import load_checkpoint

TITLE = "What was counted together"
CORRELATED = "How columns go together"
_CORRELATED = (
    "Of every two columns of a row the method measured, with noise, how they go together, and chose"
    " rows so that these have it. Each line is the correlation of two columns of yes and no:"
    " whether a number is that much or more, whether it is missing, or whether a category is that"
    " one. 1: both are yes in the same rows, and no in the same; -1: one is yes where the other is"
    " no; 0: neither tells of the other. In the real rows each person's weigh one together, and so"
    " far the released rows can be asked the same. What such a number does not tell, such as"
    " curves and tails, is kept only where more was counted."
)
FOLLOWS = "What follows actions"
_FOLLOWS = "The same of each action and what follows it, in the rows that another one follows."
_STANDS_OUT, _MOST_SHOWN = 3.0, 40
_EXPLANATION = (
    "The method counted each column by itself, and then the columns of each line below together,"
    " with noise. A relation between two columns of one line is kept as far as noise and parts let"
    " it; one between columns that no line has is indirect or lost. That these columns were counted"
    " is a part of what the budget paid for, or was fixed before."
)
_LATER_ROWS = (
    " Rows after the first are drawn as what the row before them leads to. There two columns have"
    " in common what a line of their next values says, and where there is none, about what a line"
    " of the columns themselves says."
)
_WHY_NOT = (
    "a column of them is lost in noise or nearly always the same, they have too many combinations"
    " (`model.cells`), or no count was left: others were chosen instead."
)
_LOST = (
    "a crash came between their reservation and their release. They stay paid for, as nobody knows"
    " what was drawn, and what they would have counted is not in the release. If that is too little"
    " and there is budget left, start a new run."
)
_LAST_ROWS = (
    " What follows a last row is in no table: a line with a next value, or a change, is of the rows"
    " alone that another one follows."
)
_NAMED = re.compile(
    r"(?P<of>change_next_|change_|next_|previous_|memory_|)(?P<part>observation|action)_?(?P<at>\d*)"
)
_WORDS = {
    "": "{}",
    "next_": "next {}",
    "change_next_": "change of {}",
    "change_": "change of {}",
    "previous_": "{} of the step before",
    "memory_": "level {}",
}
_OTHERS = {
    "end": "end",
    "time": "step of the trajectory",
    "rows_of_unit": "how many rows its unit has",
}


def counted_sections(
    folder: Path,
    ledger: Ledger,
    run_id: str,
    info: DatasetInfo,
    *,
    unit: str,
    asked: Sequence[Sequence[str]] = (),
) -> list[Section]:
    """Return what a run counted together; nothing where its method or its version tells nothing.

    Args:
        folder: of the run's checkpoints.
        ledger: that the run was charged to; one that does not know it has nothing to tell.
        run_id: of the run.
        info: of the release, whose columns have the names that their owner gave them.
        unit: of the run's data.
        asked: columns that the configuration asks for, by their names in the table.

    Privacy:
        Post-processing of what the stage of marginals released, its choices among it, and of its
        plan: names of columns, numbers of parts, steps, correlations and deviations of noise. How
        many steps were lost follows from when the run was ended, as the ledger has it, and from no
        row. Neither scores nor exact counts are in a checkpoint; no event.
    """
    found, related, lost = _released(folder, ledger, run_id)
    if found is None or related is None or not (found.value or lost):
        return []
    count = Metric(
        name="joint counts",
        value=found.map(len),
        explanation="in the order in which they were made. Parts are values, or ranges of them."
        f" Noise is a standard deviation; a unit is one {unit_in_words(unit)}.",
    )
    lines = [
        Metric(
            name=f"joint count {place + 1}",
            value=found.then(lambda made, place=place: made[place]).map(
                lambda one: in_words(one, info)
            ),
        )
        for place in range(len(found.value))
    ]
    missed = Metric(
        name="asked for, and not counted",
        value=found.map(lambda made: "; ".join(_missed(made, asked, info)) or "none"),
        explanation=_WHY_NOT if _missed(found.value, asked, info) else "",
    )
    crashed = Metric(name="steps lost", value=found.map(lambda _: lost), explanation=_LOST)
    metrics = [count, *[crashed] * bool(lost), *[missed] * bool(asked), *lines]
    explanation = _EXPLANATION + of_trajectories(found.value, info)
    sections = [Section(title=TITLE, explanation=explanation, metrics=metrics)]
    return [*sections, *_correlated(related, info)]


def _correlated(related: Answer[Sequence[CorrelatedColumns]], info: DatasetInfo) -> list[Section]:
    """Return what was measured of every two columns; nothing where that was not asked for."""
    if not related.value:
        return []
    told = {
        title: [place for place, one in enumerate(related.value) if one.follows == follows]
        for title, follows in ((CORRELATED, False), (FOLLOWS, True))
    }
    return [
        _correlated_section(related, places, title, info)
        for title, places in told.items()
        if places
    ]


def _correlated_section(
    related: Answer[Sequence[CorrelatedColumns]],
    places: Sequence[int],
    title: str,
    info: DatasetInfo,
) -> Section:
    """Return the section of some pairs of answers, the strongest of which have lines."""
    count = Metric(
        name="pairs of answers",
        value=related.map(lambda _: len(places)),
        explanation="of which the strongest are shown, as far as they stand out from noise: of two"
        " columns more than one where a category has more than two values, or a number may be"
        " missing.",
    )
    shown = [
        place
        for place in places
        if abs(related.value[place].value) > _STANDS_OUT * related.value[place].deviation
    ][:_MOST_SHOWN]
    lines = [
        Metric(
            name=f"pair {number}",
            value=related.then(lambda told, place=place: told[place]).map(
                lambda one: correlation_in_words(one, info)
            ),
        )
        for number, place in enumerate(shown, 1)
    ]
    explanation = _CORRELATED if title == CORRELATED else _FOLLOWS
    return Section(title=title, explanation=explanation, metrics=[count, *lines])


def correlation_in_words(one: CorrelatedColumns, info: DatasetInfo) -> str:
    """Return how two columns go together in the words of whoever owns the table.

    Args:
        one: what was released.
        info: of the release.
    """
    first, second = (
        _question_in_words(name, kind, number, info)
        for name, (kind, number) in zip(one.columns, one.asked, strict=True)
    )
    return f"{first}, and {second}: {one.value:.2f}, give or take {2 * one.deviation:.2g}"


def _question_in_words(name: str, kind: str, number: float, info: DatasetInfo) -> str:
    """Return what is asked of a column, in the words of whoever owns the table."""
    if name == "end":
        return f"the trajectory {ENDS[int(number)]}"
    column = column_in_words(name, info)
    if kind == "missing":
        return f"{column} is missing"
    if kind == "above":
        return f"{column} is {number:,.6g} or more"
    own = column_in_words(name.removeprefix("change_").removeprefix("next_"), info)
    place, verb = int(number), "is"
    if name.startswith("change_"):
        if place == STAYS:
            return f"{own} stays"
        column, place, verb = own, place - 1, "becomes"
    declared = None if info.declared is None else info.declared.kinds.get(own)
    if not isinstance(declared, CategoryKind | FlagKind):
        return f"{column} {verb} category {place}"
    label = declared.labels[place]
    return f"{column} {verb} {'missing' if label is None else label}"


def of_trajectories(made: Sequence[CountedTogether], info: DatasetInfo) -> str:
    """Return what is to be known of later and of last rows; nothing where rows stand alone.

    Args:
        made: what was counted together.
        info: of the release.
    """
    if info.kind != "trajectories":
        return ""
    following = any("next_" in name for one in made for name in one.columns)
    return _LATER_ROWS + _LAST_ROWS * (following and info.last_rows_copied)


def _missed(
    made: Sequence[CountedTogether], asked: Sequence[Sequence[str]], info: DatasetInfo
) -> list[str]:
    """Return which columns were asked for and not counted together, by their names."""
    counted = [{_as_asked(name, info) for name in one.columns} for one in made]
    numbers = {f"{name}{MISSING}": name for name in _may_be_missing(info)}
    return [
        ", ".join(names)
        for names in asked
        if {numbers.get(name, name) for name in names} not in counted
    ]


def _may_be_missing(info: DatasetInfo) -> list[str]:
    """Return what numbers are called that may be missing: they and their gaps are one column."""
    named = [
        part_names(info, part)[place]
        for part, places in info.gaps._asdict().items()
        for place in places
    ]
    return [*named, *(f"{NEXT}{name}" for name in named)]


def _as_asked(name: str, info: DatasetInfo) -> str:
    """Return what a configuration calls a column: what one becomes, whichever way it is told."""
    return column_in_words(name.replace("change_next_", "next_").replace("change_", "next_"), info)


def _released(
    folder: Path, ledger: Ledger, run_id: str
) -> tuple[
    Answer[Sequence[CountedTogether]] | None, Answer[Sequence[CorrelatedColumns]] | None, int
]:
    """Return the joint counts of the run's checkpoint, under the entry that paid; None: none.

    With them come how columns go together, and how many steps were paid for and lost.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None, None, 0
    for name in (run_id, f"{run_id}/{STAGE}"):
        entry = ledger.reserved(name)
        if entry is None or entry.status != "settled":
            continue
        try:
            tensors, _ = load_checkpoint(path, run_id=name, stage="rounds")
        except PrivRLError:
            continue
        found: Sequence[CountedTogether] = from_tensors(tensors) or []
        related: Sequence[CorrelatedColumns] = correlated_from_tensors(tensors)
        lost = entry.reserved_rounds - entry.committed_rounds
        return settled_answer(entry, found), settled_answer(entry, related), lost
    return None, None, 0


def in_words(one: CountedTogether, info: DatasetInfo) -> str:
    """Return a joint count in the words of whoever owns the table.

    Args:
        one: what was counted.
        info: of the release.
    """
    columns = ", ".join(
        f"{column_in_words(name, info)} ({parts} parts)"
        for name, parts in zip(one.columns, one.parts, strict=True)
    )
    return f"{columns}: in step {one.step}, noise of {one.noise_units:g} units a cell"


def column_in_words(name: str, info: DatasetInfo) -> str:
    """Return what a column of a method's table is called in the table that its rows came from.

    Args:
        name: as `marginals.column.Column` has it.
        info: of the release.
    """
    found = _NAMED.fullmatch(name)
    if found is None:
        named = {} if info.declared is None else {"reward": info.declared.columns.reward}
        return {**_OTHERS, **named}.get(name, name)
    names = part_names(info, found["part"])
    return _WORDS[found["of"]].format(names[int(found["at"] or 0)])
