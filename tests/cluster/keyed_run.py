"""``python -m tests.cluster.keyed_run FOLDER NAME [WORKERS]``: PrivORL-AR under the test key.

It joins the cluster at ``RAY_ADDRESS``, writes its progress to standard error, and goes on with the
run of that name if it was begun.
"""

import sys
from contextlib import closing
from pathlib import Path

from distributed_privrl.cli.progress import PlainProgress
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.methods.privorl.config import PrivorlArConfig
from distributed_privrl.runtime.launch import deferred_executor
from tests.worlds.mazes import Mazes, ar_config

KEY = 7
CHANGES = {
    "training__rounds": 30,
    "training__block_rounds": 3,
    "training__spare": 12,
    "evaluation__trainers": [],
}
RUNTIME = {"executor": "ray", "workers": 1, "blocks": 4, "recovery_seconds": 240}


def config_of(name: str, most: int = 1) -> PrivorlArConfig:
    """Return the configuration of the run of this name, with so many workers at most."""
    runtime = RUNTIME if most == 1 else RUNTIME | {"workers": {"min": 1, "max": most}}
    return ar_config(**CHANGES, runtime=runtime, output__dataset=f"test/{name}-v0")


def main() -> None:
    folder, name, *most = sys.argv[1:]
    config = config_of(name, *map(int, most))
    resume = RunDirectory(Path(folder) / name).config_path.exists()
    with closing(deferred_executor(config.runtime)) as executor:
        Mazes(Path(folder)).start(
            config,
            name,
            executor=executor,
            insecure_key=KEY,
            resume=resume,
            progress=PlainProgress(),
            reports=False,
        )


if __name__ == "__main__":
    main()
