"""The attacks on a finished run: which rows they look at, the loss attack, the copying detector."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.core.random import Streams
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.corpus_rows import texts_of
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions
from distributed_privrl.evaluation.membership import (
    AttackFigures,
    LossAttack,
    TextAttack,
    attack_figures,
    by_group,
)
from distributed_privrl.evaluation.neighbours import Copying, copying, standardised
from distributed_privrl.evaluation.roc import roc_curve
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.experiments.samples import layout_of, sampled_rows
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.stages.context import RunContext

AUDITED_ROWS = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedRows:
    """Rows of one side: members, or rows held out. Raw private data.

    Args:
        dataset: id of the dataset that they are of.
        transitions: N of them.
        groups: (N,) the unit of each row; where transitions are the units, its trajectory, because
            rows of one trajectory are no independent witnesses.
        share: of its groups' rows that were taken.
    """

    dataset: str
    transitions: Transitions
    groups: NDArray[np.uint64]
    share: float = 1.0

    def thinned(self, share: float, generator: np.random.Generator) -> "AttackedRows":
        """Return rows of which ``share`` of each group's was taken, at most ``self.share``."""
        kept = generator.random(len(self.groups)) < share / self.share
        return replace(
            self, transitions=self.transitions.select(kept), groups=self.groups[kept], share=share
        )


Sides = tuple[AttackedRows, AttackedRows]


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What the membership attack found; private.

    Args:
        figures: of the attack with the mean of all losses, fixed beforehand.
        areas: under the ROC curve of each loss alone, by name; the best of several flatters.
        rounds: how many rounds the model was trained on sensitive rows.
    """

    figures: AttackFigures
    areas: dict[str, float]
    rounds: int


def attacked_sides(config: RunConfig, store: DatasetStore, held_out: str) -> Sides:
    """Return rows of the sensitive dataset and of the one held out.

    Raises:
        ConfigError: a dataset is missing or holds no rows.

    Privacy: raw rows, for the attacks alone.
    """
    sides = []
    for dataset in (config.data.sensitive, held_out):
        rows = attacked_rows(
            store,
            dataset,
            unit=config.data.unit,
            limit=AUDITED_ROWS,
            max_length=config.data.max_length,
            generator=Streams(config.seed).numpy(f"audit/rows/{dataset}"),
        )
        sides.append(rows)
    return sides[0], sides[1]


def attacked_rows(
    store: DatasetStore,
    dataset: str,
    *,
    unit: str,
    limit: int,
    max_length: int | None,
    generator: np.random.Generator,
) -> AttackedRows:
    """Return about ``limit`` rows of a dataset: whole units, or single transitions.

    Args:
        store: datasets.
        dataset: its id.
        unit: of the run.
        limit: rows; where a unit has several, units are added until they are reached.
        max_length: the run's cap on the rows of a unit: others trained nothing.
        generator: source of the choice.

    Raises:
        ConfigError: no such dataset, it does not know the unit, or holds no rows.
    """
    share = 1.0
    if unit == TRANSITION:
        total = store.info(dataset).total_steps.open(Purpose.PRIVATE)
        share = min(1.0, limit / max(total, 1))
        rows = _single_rows(store, dataset, share, generator)
    else:
        rows = _whole_units(store, dataset, unit, limit, generator)
        if max_length is not None:
            rows = rows.select(_position_in_unit(rows.unit_ids) < max_length)
    return AttackedRows(dataset=dataset, transitions=rows, groups=rows.unit_ids, share=share)


def _single_rows(
    store: DatasetStore, dataset: str, share: float, generator: np.random.Generator
) -> Transitions:
    info = store.info(dataset)
    group = TRAJECTORY if info.kind == "trajectories" else info.unit_column or TRANSITION
    parts = [
        chunk.select(generator.random(len(chunk)) < share)
        for chunk in store.iter_transitions(dataset, unit=group)
    ]
    return _joined(parts, dataset)


def _whole_units(
    store: DatasetStore, dataset: str, unit: str, limit: int, generator: np.random.Generator
) -> Transitions:
    counts: Counter[int] = Counter()
    for chunk in store.iter_transitions(dataset, unit=unit):
        ids, rows = np.unique(chunk.unit_ids, return_counts=True)
        counts.update(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
    units = generator.permutation(np.array(sorted(counts), dtype=np.uint64))
    before = np.cumsum([0, *(counts[one] for one in units.tolist())])[:-1]
    chosen = units[before < limit]
    kept = store.iter_transitions(dataset, unit=unit, keep=lambda ids: np.isin(ids, chosen))
    return _joined(list(kept), dataset)


def _joined(parts: list[Transitions], dataset: str) -> Transitions:
    if not any(map(len, parts)):
        raise ConfigError(f"{dataset} holds no rows to audit with: name another dataset")
    return Transitions.concatenate(parts)


def _position_in_unit(unit_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    order = np.argsort(unit_ids, kind="stable")
    _, starts, counts = np.unique(unit_ids[order], return_index=True, return_counts=True)
    positions = np.empty(len(unit_ids), dtype=np.int64)
    positions[order] = np.arange(len(unit_ids)) - np.repeat(starts, counts)
    return positions


def attack_members(
    config: RunConfig,
    directory: RunDirectory,
    store: DatasetStore,
    ledger_url: str | None,
    sides: Sides,
) -> Attacked | str:
    """Attack the model by its losses, or say in words why that is not possible.

    A row's score is minus the mean of its losses, or of those of the document that it stands for;
    where a unit has several rows, the unit's is
    minus their mean. Of groups of several rows the same share is looked at on both sides: the
    attack's permutations take groups of both for alike but for their names.

    Raises:
        ConfigError: the method cannot rebuild what it trained.
        StorageError: the checkpoint cannot be read.

    Privacy: reads members and rows held out; the result is for ``private/`` alone.
    """
    ledger = Ledger(ledger_url)
    try:
        attack = method_named(config.method).open_attack(
            config,
            RunContext(
                run_id=directory.run_id,
                folder=directory.working(private=config.privacy.epsilon is not None),
                executor=LocalExecutor(),
                store=store,
                ledger=ledger,
                fingerprint=inspect(store, config.data.sensitive, unit=config.data.unit).identity,
                progress=silent,
            ),
        )
    finally:
        ledger.close()
    if attack is None:
        return f"not applicable: method {config.method} offers no attack on its model"
    scored = []
    common = min(side.share for side in sides)
    generator = Streams(config.seed).numpy("audit/thinning")
    for side in sides:
        single = len(np.unique(side.groups)) == len(side.groups)
        rows = side if single else side.thinned(common, generator)
        scored.append(_losses(attack, rows, store, whole_units=config.data.unit != TRANSITION))
    (members, member_groups), (others, other_groups) = scored
    figures = attack_figures(
        -members.mean(axis=1),
        -others.mean(axis=1),
        generator=Streams(config.seed).numpy("audit/bootstrap"),
        member_groups=member_groups,
        non_member_groups=other_groups,
    )
    areas = {
        name: roc_curve(-members[:, i], -others[:, i]).area
        for i, name in enumerate(attack.settings)
    }
    return Attacked(figures=figures, areas=areas, rounds=attack.rounds)


def _losses(
    attack: LossAttack | TextAttack, rows: AttackedRows, store: DatasetStore, *, whole_units: bool
) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    if isinstance(attack, TextAttack):
        losses = attack.text_losses(texts_of(store, rows.dataset, rows.transitions))
    else:
        losses = attack.losses(rows.transitions)
    kept = np.isfinite(losses).all(axis=1)
    if whole_units:
        return by_group(losses[kept], rows.groups[kept])
    return losses[kept], rows.groups[kept]


def detect_copies(config: RunConfig, store: DatasetStore, sides: Sides) -> Copying | str:
    """Compare the released rows with both sides, or say in words why that is not possible.

    The same share of each group's rows is looked at on both sides: only then are groups of training
    rows and groups held out alike but for their names.

    Raises:
        ConfigError: the released dataset is missing, or a side has no proper row.

    Privacy: reads members and rows held out; the result is for ``private/`` alone.
    """
    if not isinstance(config.output, OutputConfig):
        return f"not applicable: method {config.method} releases no rows"
    layout = layout_of(store, config.data.sensitive)
    tables, groups = [], []
    generator = Streams(config.seed).numpy("audit/permutations")
    common = min(side.share for side in sides)
    for side in sides:
        thinned = side.thinned(common, generator)
        rows, valid = layout.to_rows(thinned.transitions)
        tables.append(rows[valid])
        groups.append(thinned.groups[valid])
    synthetic = sampled_rows(store, config.output.dataset, AUDITED_ROWS)
    training, held_out, released = standardised(np.concatenate(tables), *tables, synthetic)
    return copying(
        training,
        held_out,
        released,
        generator=generator,
        training_groups=groups[0],
        held_out_groups=groups[1],
    )
