"""A run of marginals on Ray with seeded noise, as a process of its own."""

import sys
from contextlib import closing
from pathlib import Path

from distributed_privrl.core.places import place_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.stored_folders import opened_folder
from distributed_privrl.experiments import run as program
from distributed_privrl.methods.marginals.config import MarginalsConfig
from distributed_privrl.runtime.executor import RayExecutor
from tests.worlds.intake import config_values
from tests.worlds.ledgers import url_of
from tests.worlds.overrides import parsed

KEY, STEPS = 7, 6


def main(home: Path, out: str, *, resume: bool) -> None:
    """Run with datasets and ledger in ``home``.

    Args:
        home: a folder.
        out: of the run, a path or a URI.
        resume: go on.
    """
    changes = {"training__steps": STEPS, "output__dataset": f"intake/{Path(out).name}-v0"}
    config = parsed(config_values(home / "bounds.yaml", **changes), MarginalsConfig)
    with closing(RayExecutor(workers=2)) as executor, opened_folder(place_of("out", out)) as folder:
        program.run(
            config,
            executor,
            out=folder,
            ledger_url=url_of(home),
            store=DatasetStore(home / "datasets"),
            resume=resume,
            insecure_key=KEY,
            reports=False,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], resume="--resume" in sys.argv)
