"""The public report's measures: how near the release is to noisy counts of the sensitive rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.histograms import Histogram
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import Answer, settled_answer
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.bounding import weights_of_rows
from distributed_privrl.stages.first_releases import MEASURES
from distributed_privrl.stages.measuring import Measures, measures_of, weighted_counts

DRAWS = 400
"""Of noise, for the floor of a distance."""
_SURE = 0.95
"""Of an interval, and of the distances that noise and chance make."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """Noisy counts of the sensitive rows, and counts of the released ones; all of it released.

    Args:
        real: ``(C,)`` noisy, in units.
        released: ``(C,)``, in trajectories or rows.
    """

    real: NDArray[np.float64]
    released: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What a distance would be if the release were drawn from the sensitive rows' distribution.

    Args:
        units: of the sensitive dataset.
        scale: of the noise of a cell, in units.
        seed: public, of the simulation.
    """

    units: int
    scale: float
    seed: int

    def distances(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `DRAWS` distances by noise and chance alone, for released counts ``(C,)``.

        As many units, a row each, and as many released ones are drawn from the released shares, and
        the units' counts get the noise of the real ones.
        """
        random = Streams(self.seed).numpy("noise floor")
        likely, made = shares(released), max(1, round(float(released.sum())))
        found = []
        for _ in range(DRAWS):
            real = random.multinomial(self.units, likely) + random.laplace(
                scale=self.scale, size=likely.shape
            )
            found.append(distance(real, random.multinomial(made, likely).astype(np.float64)))
        return np.array(found)


def shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return counts as shares of their sum; what noise made negative is nothing."""
    kept = np.maximum(counts, 0.0)
    total = kept.sum()
    return kept / total if total > 0 else np.full(kept.shape, 1 / kept.size)


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the total variation between the shares of two counts ``(C,)``."""
    return float(np.abs(shares(one) - shares(other)).sum() / 2)


def measures_sections(
    config: RunConfig,
    store: DatasetStore,
    ledger: Ledger,
    certificate: Certificate,
    run_id: str,
    released: Sourced[str],
) -> list[Section]:
    """Return the section of a public report that tells how near the release is; none, if not asked.

    Args:
        config: of the run.
        store: of its datasets.
        ledger: that the counts were charged to, and which holds them.
        certificate: of the run.
        run_id: of the run.
        released: id of the released dataset.

    Raises:
        ConfigError: the ledger does not hold the counts.

    Privacy: post-processing of the stage ``measures``, whose one vector of counts was declared,
        reserved and charged before anything was drawn, and of the released rows.
    """
    measures = measures_of(config, store)
    if measures is None or released.answer is None:
        return []
    real = _answer(ledger, run_id)
    units = next(stage.units for stage in certificate.stages if stage.name == MEASURES)
    noise = measures.release(Relation(config.privacy.relation))
    floor = Floor(units=units, scale=noise.scale / UNIT_WEIGHT, seed=config.seed)
    own = _released_counts(config, store, measures)
    unit = _released_unit(config, store, released.content)
    both = real.then(
        lambda counts, made: Sides(real=counts / UNIT_WEIGHT, released=made / UNIT_WEIGHT),
        released.answer.then(own),
    )
    metrics: list[Metric] = []
    starts = np.cumsum([0, *(one.size for one in measures.histograms)]).tolist()
    for place, histogram in enumerate(measures.histograms):
        part = both.then(partial(_part, start=starts[place], stop=starts[place + 1]))
        if place < len(measures.pairs):
            metrics += _of_pair(histogram, part, floor)
        else:
            event = place - len(measures.pairs)
            metrics += _of_event(measures, event, part, floor.scale)
    return [
        Section(
            title="How near the release is, measured with noise",
            explanation="Counts of the sensitive rows, each unit's rows weighing one together, were"
            " declared before the run and released once with noise (stage measures). A distance is"
            f" the total variation between the shares of their cells and those of the release,"
            f" each {'trajectory' if unit == TRAJECTORY else 'row'} of which weighs one: 0, alike;"
            " 1, nothing in common. Noise and chance alone make some of it: a distance within what"
            " they make shows no difference.",
            metrics=metrics,
            figures=[
                Sourced.released(both).figure(
                    lambda sides: plots.paired_shares(_panels(measures, sides)),
                    "Shares of the pairs' cells",
                )
            ]
            if measures.pairs
            else [],
        )
    ]


def _answer(ledger: Ledger, run_id: str) -> Answer[NDArray[np.float64]]:
    """Return the noisy counts, in integers of `UNIT_WEIGHT` a unit."""
    name = f"{run_id}/{MEASURES}"
    entry, stored = ledger.reserved(name), ledger.answer(name)
    if entry is None or stored is None:
        raise ConfigError(
            f"the ledger does not hold the noisy measures of {run_id}: give --ledger URL of the"
            " ledger that the run was charged to"
        )
    return settled_answer(entry, np.array(stored["answer"], np.float64))


def _released_counts(
    config: RunConfig, store: DatasetStore, measures: Measures
) -> Callable[[str], NDArray[np.float64]]:
    """Return what counts a released dataset, each trajectory or row weighing one."""

    def count(dataset: str) -> NDArray[np.float64]:
        info, unit = store.info(dataset), _released_unit(config, store, dataset)
        read = partial(store.iter_transitions, dataset, unit=unit)
        return weighted_counts(measures, info, read(), weights_of_rows(unit, read)).astype(float)

    return count


def _released_unit(config: RunConfig, store: DatasetStore, dataset: str) -> str:
    """Return what stands for a unit among released rows: a trajectory, where units have many."""
    whole = store.info(dataset).kind == "trajectories" and config.data.unit != TRANSITION
    return TRAJECTORY if whole else TRANSITION


def _part(sides: Sides, *, start: int, stop: int) -> Sides:
    return Sides(real=sides.real[start:stop], released=sides.released[start:stop])


def _of_pair(histogram: Histogram, sides: Answer[Sides], floor: Floor) -> list[Metric]:
    one, other = (column.name for column in histogram.columns)
    made = sides.then(lambda both: floor.distances(both.released))
    return [
        Metric(
            name=f"{one} with {other}: distance",
            value=sides.map(lambda both: distance(both.real, both.released)),
            explanation="beside it: what noise and chance alone make, median",
            reference=made.map(lambda found: float(np.median(found))),
        ),
        Metric(
            name=f"{one} with {other}: noise and chance make up to",
            value=made.map(lambda found: float(np.quantile(found, _SURE))),
            explanation=f"in {_SURE:.0%} of {DRAWS} draws; a larger distance is a difference",
        ),
    ]


def _of_event(measures: Measures, place: int, sides: Answer[Sides], scale: float) -> list[Metric]:
    """Return the shares of an event; its interval is that of the noise, by Laplace's law."""
    event, cell = measures.asked.events[place], measures.event_cell(place)
    words = _words(event.value, event.at_least, event.below)
    reach = -scale * float(np.log(1 - _SURE))

    def interval(both: Sides) -> str:
        total = max(float(both.real.sum()), 1.0)
        low, high = ((both.real[cell] + step) / total for step in (-reach, reach))
        return f"{max(low, 0.0):.4g} to {min(max(high, 0.0), 1.0):.4g}"

    return [
        Metric(
            name=f"{event.column} {words}: share",
            value=sides.map(lambda both: float(shares(both.released)[cell])),
            explanation="of the release; beside it: of the sensitive rows, with noise",
            reference=sides.map(lambda both: float(shares(both.real)[cell])),
        ),
        Metric(
            name=f"{event.column} {words}: share of the sensitive rows, {_SURE:.0%} interval",
            value=sides.map(interval),
            explanation="from the noise of this count alone",
        ),
    ]


def _words(value: object, at_least: float | None, below: float | None) -> str:
    if value is not None:
        return f"is {value}"
    low = "" if at_least is None else f"at least {at_least:g}"
    high = "" if below is None else f"below {below:g}"
    return " and ".join(filter(None, (low, high)))


def _panels(measures: Measures, sides: Sides) -> list[plots.PairedShares]:
    """Return what is drawn of each pair."""
    found, start = [], 0
    for histogram in measures.pairs:
        part = slice(start, start + histogram.size)
        start += histogram.size
        one, other = histogram.columns
        found.append(
            plots.PairedShares(
                names=(one.name, other.name),
                labels=(one.labels, other.labels),
                real=shares(sides.real[part]).reshape(histogram.shape),
                released=shares(sides.released[part]).reshape(histogram.shape),
            )
        )
    return found
