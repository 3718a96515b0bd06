"""Whether a run's public report asks for measures, told without what counts them (`measuring`)."""

from typing import TypeVar

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import (
    MEASURES,
    MEASURES_KEY,
    FirstRelease,
    Question,
)

WorldT = TypeVar("WorldT")


def first_measures(config: RunConfig) -> tuple[FirstRelease[WorldT], ...]:
    """Return the release of the counts that the public report asks for; none, if it does not.

    The world stays as it is: nothing that is learned depends on them. See `measuring`.
    """
    asked = config.evaluation.measures
    if asked is None:
        return ()

    def ask(world: WorldT, _: UnitCount, context: RunContext) -> Question[WorldT]:
        from distributed_privrl.stages.measuring import measures_of, measures_question

        measures = measures_of(config, context.store)
        assert measures is not None
        return measures_question(measures, config, context).then(lambda _: world)

    return (FirstRelease(name=MEASURES, key=MEASURES_KEY, epsilon=asked.epsilon, ask=ask),)


def noise_of_measures(config: RunConfig) -> float | None:
    """Return the scale of the noise of each count of the public report, in units; None: no counts.

    Privacy: from the configuration alone; see `measuring.Measures.release`.
    """
    asked = config.evaluation.measures
    if asked is None:
        return None
    moved = Relation(config.privacy.relation).contributions
    return (len(asked.pairs) + len(asked.events)) * moved / asked.epsilon


def check_measures(config: RunConfig, store: DatasetStore | None = None) -> None:
    """Check that the counts that the public report asks for can be made.

    Args:
        config: of the run.
        store: of its datasets, whose declared columns are looked at; None: the configuration alone.

    Raises:
        ConfigError: the run releases no rows, no column is called so, or one has no such value.
    """
    if config.evaluation.measures is None:
        return
    if not isinstance(config.output, OutputConfig):
        raise ConfigError(
            f"{MEASURES_KEY} tell how near released rows are, and {config.method} releases none:"
            " leave them out"
        )
    if store is not None:
        from distributed_privrl.stages.measuring import measures_of

        measures_of(config, store)
