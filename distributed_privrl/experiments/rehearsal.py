"""A rehearsal: the program's own run on rows that stand in, and what of them survives its noise.

Nothing is charged: ledger, datasets and run lie in a folder that is removed at the end. No row of
the sensitive dataset is read; what it declares (spaces, names, bounds) is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from gymnasium.spaces import Box

from distributed_privrl.core.config import (
    DataConfig,
    NoisyBounds,
    NoisyCount,
    OutputConfig,
    RunConfig,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds, bounds_from_environment, bounds_from_public
from distributed_privrl.data.declared import DeclaredTable, LabelledKind
from distributed_privrl.data.kept import Kept, kept_in_rows, kept_in_trajectories
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import CATEGORY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions
from distributed_privrl.evaluation.survival import (
    Survived,
    columns_kept,
    pair_kept,
    pairs_kept,
    prediction_kept,
    rare_kept,
    strengths_kept,
)
from distributed_privrl.experiments.copies import copy_dataset, copy_units
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.experiments.rehearsal_report import Rehearsal
from distributed_privrl.experiments.run import run
from distributed_privrl.experiments.standin import Lengths, StandIn
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.stage import as_followed
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.steps import Steps
from distributed_privrl.stages.encoders import ForeseenColumns, bounds_source, foreseen_columns

NAMESPACE = "rehearsal"
"""Of the ids of all that a rehearsal makes."""
COMPARED_ROWS = 20_000
_ROWS = 10
"""Rows of a trajectory, or unit, where nothing says how many it may have."""


def rehearse(
    config: RunConfig,
    executor: Executor,
    *,
    work: Path,
    rows: str | None = None,
    units: int | None = None,
    store: DatasetStore | None = None,
    progress: Progress = silent,
    insecure_key: int | None = None,
) -> Rehearsal:
    """Run a configuration on rows that stand in, and return what of them survives.

    Args:
        config: of the run; it must release rows or trajectories.
        executor: where workers run; stays open.
        work: a new folder for ledger, datasets and run; the caller removes it.
        rows: id of a dataset declared public; None: rows are invented.
        units: how many there are, where the configuration has them counted with noise.
        store: datasets, of which the sensitive one is asked for what it declares, and nothing else.
        progress: told where the work is.
        insecure_key: seeded noise, for tests.

    Raises:
        ConfigError: the run releases a policy, nothing tells the columns, the number of units is
            not known, or ``rows`` has other columns or too few units.
        UnsafeError: ``rows`` was not declared public.

    Privacy: of the sensitive dataset, no row and no figure of rows is read: its spaces, names and
    kinds, as `foreseen_columns`. The run's ledger is its own and new, so that no budget is spent.
    """
    store, output = store or DatasetStore(), config.output
    if not isinstance(output, OutputConfig):
        raise ConfigError(f"{config.method} releases no rows, which a rehearsal compares")
    asked = config.data.units if isinstance(config.data.units, int) else units
    if asked is None:
        raise ConfigError(
            "data.units are counted with noise: say with --units how many you expect, so that as"
            " many stand in"
        )
    known = foreseen_columns(config.data, store)
    if known is None:
        raise ConfigError(
            "nothing tells the columns: import the dataset, or give a data.bounds file that lists"
            " numbers"
        )
    about = store.info(config.data.sensitive) if store.holds(config.data.sensitive) else None
    own = DatasetStore(work / "datasets")
    for public in config.data.public:
        copy_dataset(store, public, own)
    mine = _rehearsed(config)
    dataset = mine.data.sensitive
    whole = _whole(config, about if rows is None else store.info(rows))
    columns = step_columns(
        known.observation_space,
        known.action_space,
        _bounds(config.data, store, known),
        next_observation="absolute",
        ends=3 if whole else 2,
        has_reward=known.has_reward,
    )
    columns = as_followed(columns, known)
    if rows is None:
        _invent(config, columns, own, dataset, about, units=asked, whole=whole)
    else:
        copy_units(
            store,
            rows,
            own,
            dataset,
            data=config.data,
            spaces=(known.observation_space, known.action_space),
            units=asked,
        )
    ledger_url = f"sqlite:///{(work / 'ledger.sqlite').absolute()}"
    set_budget(mine, own, ledger_url)
    result = run(
        mine,
        executor,
        out=work / "run",
        ledger_url=ledger_url,
        store=own,
        progress=progress,
        insecure_key=insecure_key,
        anyway=True,
    )
    names = _names(columns, about.declared if about is not None else None)
    real, made = (_frame(own, one, columns, names, about) for one in (dataset, result.released))
    planned = None if isinstance(mine.data.units, NoisyCount) else plan_run(mine, own).verdict
    return Rehearsal(
        rows="invented rows" if rows is None else rows,
        units=asked,
        epsilon=result.certificate.epsilon,
        verdict=None if planned is None else str(planned),
        sections=_sections(own, (dataset, result.released), (real, made), columns, names, about),
        strengths=strengths_kept(real, made),
    )


def _rehearsed(config: RunConfig) -> RunConfig:
    """Return the configuration under ids that nobody takes for those of a release."""
    values = config.model_dump(mode="json", exclude={"evaluation"})
    for section, key in (("data", "sensitive"), ("output", "dataset")):
        values[section][key] = f"{NAMESPACE}/{values[section][key].rpartition('/')[2]}"
    return parse_config({"method": config.method, **values}, source="the rehearsal")


def _bounds(data: DataConfig, store: DatasetStore, known: ForeseenColumns) -> Bounds:
    source = bounds_source(data)
    if source == "public":
        chunks = {name: store.iter_transitions(name, unit=TRANSITION) for name in data.public}
        return bounds_from_public(chunks, known.observation_space, known.action_space)
    if isinstance(source, NoisyBounds):
        source = source.search
    if source == "environment":
        return bounds_from_environment(str(data.environment))
    return known.bounds


def _invent(
    config: RunConfig,
    columns: TableColumns,
    store: DatasetStore,
    dataset: str,
    about: DatasetInfo | None,
    *,
    units: int,
    whole: bool,
) -> None:
    """Write invented rows, in the form in which the sensitive dataset is stored."""
    unit = config.data.unit
    made = StandIn(
        columns=columns,
        units=units,
        lengths=_lengths(config, whole=whole),
        wide=isinstance(config.data.bounds, NoisyBounds),
    )
    random = Streams(config.seed).child("rehearsal").numpy("rows")
    settings: dict[str, Any] = {
        "observation_space": columns.observation_space,
        "action_space": columns.action_space,
        "environment": config.data.environment,
        "unit_column": None if unit in (TRANSITION, TRAJECTORY) else unit,
        "declared": None if about is None else about.declared,
    }
    kept = Kept() if about is None else about.kept
    if whole:
        store.write_trajectories(
            dataset,
            (kept_in_trajectories(one, kept) for one in made.trajectories(random)),
            layout="packed",
            **settings,
        )
        return
    store.write_transitions(
        dataset,
        (kept_in_rows(one, kept) for one in made.transitions(random)),
        layout="transitions",
        has_successors=bool(columns.of("next_observation")),
        **settings,
    )


def _whole(config: RunConfig, info: DatasetInfo | None) -> bool:
    """Say whether rows belong to trajectories: as they are stored, else as the run needs them."""
    if info is not None:
        return info.kind == "trajectories"
    asked = isinstance(config.output, OutputConfig) and config.output.COUNTED == "trajectories"
    return asked or config.data.unit == TRAJECTORY


def _lengths(config: RunConfig, *, whole: bool) -> Lengths:
    """Return how many trajectories a unit has, and rows each of them, as far as it is declared."""
    if config.data.unit == TRANSITION:
        return Lengths(least=1, most=1)
    of_unit, rows = config.data.max_length, getattr(config.model, "rows_per_unit", None)
    if rows is not None and of_unit is not None:
        rows = min(rows, of_unit)
    each, longest = 1, None
    if whole:
        longest = getattr(getattr(config.training, "sampling", None), "max_length", None)
        if config.data.unit != TRAJECTORY:
            needed = 1 if rows is None or longest is None else -(-rows // longest)
            each = getattr(config.model, "trajectories_per_unit", None) or needed
    limits = [longest, None if of_unit is None else max(1, of_unit // each)]
    most = min((one for one in limits if one is not None), default=None)
    if rows is not None:
        return Lengths.about(rows / each, trajectories=each, longest=most)
    return Lengths.up_to(_ROWS if most is None else most, trajectories=each)


def _names(columns: TableColumns, declared: DeclaredTable | None) -> list[str]:
    """Return what the columns of the table are called, as its schema has it."""
    if declared is None:
        return [one.name for one in columns.columns]
    named: dict[str, list[str]] = {"reward": declared.columns.of("reward"), "end": ["end"]}
    for part in ("observation", "action"):
        named[part] = []
        for name, kind in declared.part(part):
            beside = isinstance(
                columns.observation_space if part == "observation" else columns.action_space, Box
            )
            named[part].append(name)
            if kind.missing == "indicator" and beside:
                named[part].append(f"{name} missing")
    named["next_observation"] = [f"next {name}" for name in named["observation"]]
    following = {part: iter(names) for part, names in named.items()}
    return [next(following[one.part]) for one in columns.columns]


def _frame(
    store: DatasetStore,
    dataset: str,
    columns: TableColumns,
    names: Sequence[str],
    about: DatasetInfo | None,
) -> pd.DataFrame:
    """Return some rows of a dataset as columns of numbers and categories.

    What lasts is there once: after a step it is a copy, and a copy that goes together with itself
    says nothing of what noise leaves of a relation.
    """
    unit = store.info(dataset).unit_column or TRANSITION
    rows = _first_rows(store.iter_transitions(dataset, unit=unit))
    valid = columns.coded(Steps(rows)).valid  # methods leave others out, too
    found = _named(rows.select(valid), columns, names, about)
    declared = None if about is None else about.declared
    lasting = [] if declared is None else declared.lasting_by_name(held=True)
    copies = [f"next {name}{more}" for name in lasting for more in ("", " missing")]
    return found.drop(columns=copies, errors="ignore")


def _first_rows(chunks: Iterable[Transitions]) -> Transitions:
    """Return the first rows of a dataset, `COMPARED_ROWS` at most."""
    taken: list[Transitions] = []
    for chunk in chunks:
        taken.append(chunk)
        if sum(map(len, taken)) >= COMPARED_ROWS:
            break
    return Transitions.concatenate(taken).select(slice(0, COMPARED_ROWS))


def _named(
    rows: Transitions,
    columns: TableColumns,
    names: Sequence[str],
    about: DatasetInfo | None,
) -> pd.DataFrame:
    """Return rows without gaps as columns of numbers and categories."""
    steps = Steps(rows)
    kinds = {} if about is None or about.declared is None else about.declared.kinds
    made: dict[str, pd.Series[Any]] = {}
    for name, column in zip(names, columns.columns, strict=True):
        raw = steps.column(column)
        if column.cells is not None:
            made[name] = pd.Series(raw.astype(np.float64))
            continue
        kind = kinds.get(name.removeprefix("next "))
        if isinstance(kind, LabelledKind):
            labels = ["missing" if one is None else str(one) for one in kind.labels]
            texts = [labels[int(code) - column.start] for code in raw]
        else:
            texts = [str(int(code)) for code in raw]
        values: pd.Series[Any] = pd.Series(texts, dtype=object)
        made[name] = values.astype(CATEGORY)
    return pd.DataFrame(made)


def _successive(
    store: DatasetStore,
    dataset: str,
    columns: TableColumns,
    names: Sequence[str],
    about: DatasetInfo | None,
) -> pd.DataFrame:
    """Return the actions of steps that follow each other in a trajectory, side by side."""
    chunks = store.iter_trajectories(dataset, unit=TRAJECTORY)
    rows = _first_rows(chunk.transitions(TRAJECTORY) for chunk in chunks)
    valid = columns.coded(Steps(rows)).valid
    together = valid[:-1] & valid[1:] & (rows.unit_ids[:-1] == rows.unit_ids[1:])
    places, acted = np.flatnonzero(together), [names[one] for one in columns.of("action")]
    before, after = (
        _named(rows.select(one), columns, names, about)[acted] for one in (places, places + 1)
    )
    return pd.concat([before, after.add_prefix("next ")], axis=1)


def _sections(
    store: DatasetStore,
    datasets: tuple[str, str],
    frames: tuple[pd.DataFrame, pd.DataFrame],
    columns: TableColumns,
    names: Sequence[str],
    about: DatasetInfo | None,
) -> dict[str, list[Survived]]:
    real, made = frames
    given = [names[place] for place in columns.of("observation", "action")]
    sections = {
        "columns, likeness from 0 to 1": columns_kept(real, made),
        "strongest pairs, association": pairs_kept(real, made),
        "rare categories, share of the rows": rare_kept(real, made),
    }
    if all(store.info(one).kind == "trajectories" for one in datasets):
        mean, other = (_mean_length(store, one) for one in datasets)
        near = abs(other - mean) <= 0.1 * mean
        sections["lengths"] = [
            Survived(name="mean length of a trajectory", before=mean, after=other, kept=near)
        ]
        acts, made_acts = (_successive(store, one, columns, names, about) for one in datasets)
        sections["actions and the one before, association"] = [
            pair_kept(acts, made_acts, names[one], f"next {names[one]}")
            for one in columns.of("action")
        ]
    sections["reward given state and action, share of its variance explained"] = [
        replace(prediction_kept(real, made, target=one, given=given), name=one)
        for one in (names[place] for place in columns.of("reward"))
    ]
    return {title: figures for title, figures in sections.items() if figures}


def _mean_length(store: DatasetStore, dataset: str) -> float:
    chunks = store.iter_trajectories(dataset, unit=TRAJECTORY)
    return float(np.concatenate([chunk.lengths for chunk in chunks]).mean())
