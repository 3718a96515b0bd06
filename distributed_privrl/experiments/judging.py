"""What follows a run's certificate: agents trained on the release, and the reports.

It imports torch and matplotlib, so a run imports it once it gets here.
"""

from collections.abc import Mapping

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.agents import Trials
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.release_evaluation import evaluate_release
from distributed_privrl.experiments.reports import write_reports
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.ledger import Ledger


def judged(
    config: RunConfig,
    store: DatasetStore,
    directory: RunDirectory,
    certificate: Certificate,
    executor: Executor,
    *,
    ledger: Ledger,
    progress: Progress,
    more_trainers: Mapping[str, Trainer] | None = None,
    reports: bool = True,
) -> Trials:
    """Train the agents that a run's configuration asks for, and write its reports.

    Args:
        config: of the run.
        store: datasets.
        directory: of the run.
        certificate: of the release.
        executor: where agents are trained.
        ledger: that the run was charged to.
        progress: told where it is.
        more_trainers: trainers beside the plain loops, by name.
        reports: write them.

    Returns:
        what the agents earned.

    Raises:
        ConfigError: as `evaluate_release`.

    Privacy: as `evaluate_release` and `write_reports`.
    """
    trials = evaluate_release(
        config,
        store,
        directory,
        certificate,
        executor,
        progress=progress,
        more_trainers=more_trainers,
    )
    if reports:
        write_reports(
            config,
            store,
            directory,
            certificate,
            trials,
            ledger=ledger,
            executor=executor,
            progress=progress,
        )
    return trials
