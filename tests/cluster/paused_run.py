"""``python -m tests.cluster.paused_run FOLDER NAME [STEP...]``: value iteration under a test key.

It joins the cluster at ``RAY_ADDRESS``, and goes on with the run of that name if it was begun.
After each of the steps it says so on standard error, and waits for a line.
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.runtime.launch import deferred_executor
from tests.worlds import grid
from tests.worlds.ledgers import url_of

RUNTIME = {"executor": "ray", "workers": {"min": 1, "max": 2}, "recovery_seconds": 240}


def config_of(**runtime: Any) -> Any:
    """Return the configuration of the run."""
    return grid.config(training={"spare": 4}, runtime=runtime)


def main() -> None:
    home, name, *steps = Path(sys.argv[1]), *sys.argv[2:]
    config = config_of(**RUNTIME)

    def pause(stage: str, done: int, *_: Any) -> None:
        if str(done) in steps:
            print(f"step {done}", file=sys.stderr, flush=True)
            sys.stdin.readline()

    with closing(deferred_executor(config.runtime)) as executor:
        program.run(
            config,
            executor,
            out=home / name,
            ledger_url=url_of(home),
            store=DatasetStore(home / "datasets"),
            insecure_key=grid.Grid.key,
            resume=RunDirectory(home / name).config_path.exists(),
            progress=pause,
            reports=False,
        )


if __name__ == "__main__":
    main()
