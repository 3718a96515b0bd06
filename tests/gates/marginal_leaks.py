"""A gate on whole runs of marginals: nothing exact leaves, and nothing of who stands out."""

from pathlib import Path

from distributed_privrl.core.config import OutputConfig
from distributed_privrl.data.metadata import CERTIFICATE_KEY, DRIFT_KEY, SEAM_KEY, SUPPORT_KEY
from distributed_privrl.experiments.cards import SYNTHETIC_KEY
from distributed_privrl.experiments.publishing import RUN_KEY
from tests.gates.leak_runs import Finished, figures_of, raw_rows, watched_run
from tests.gates.leaks import scan, scan_metadata
from tests.worlds.opened import opened
from tests.worlds.rarities import DATASET, Rarities

METADATA = {
    *("description", "algorithm_name", SYNTHETIC_KEY),
    *(RUN_KEY, CERTIFICATE_KEY, DRIFT_KEY, SEAM_KEY, SUPPORT_KEY),
}
"""What a released dataset may say of itself, beside its spaces, sizes and environment."""


def rare_run(folder: Path, method: str) -> Finished:
    """Run a method on the stays, watched."""
    world = Rarities(folder, method)
    secrets = world.secrets(raw_rows(world.store, DATASET), figures_of(world.recorded))
    return watched_run(world, world.config(), secrets)


def gate_nothing_leaves(run: Finished) -> None:
    """No file outside ``private/``, no argument, no released row and no word holds a secret."""
    secrets = run.secrets
    assert len(secrets.counts) > 50, "no worker counted anything"
    chooses = run.config.method != "privsyn"  # whose scores are released as counts are
    assert len(secrets.scores) > 1 or not chooses, "no joint count was chosen"
    assert len(run.sent) > 5, "nothing was sent"
    assert isinstance(run.config.output, OutputConfig)
    scan(run.folder, secrets, said=run.said, beside=[run.released], sent=run.sent)
    info = run.store.info(run.config.output.dataset)
    scan_metadata(opened(info.metadata), secrets, known=METADATA)
