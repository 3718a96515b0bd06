"""Commands in processes of their own, and what they may not import.

A process that has imported what is light forks for each command: what the fork finds loaded in the
end is what the command imported, beside what is checked to be light in every fork alike.
"""

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SLOW = frozenset({"ray", "torch", "jax", "mbi", "numba", "pandas", "matplotlib", "sqlalchemy"})
ROOT = Path(__file__).parents[2]
START = ("distributed_privrl.cli.app", "numpy", "pydantic", "yaml")
MOST = (*START, "distributed_privrl.experiments.names", "distributed_privrl.privacy.composition")
"""What nearly every command imports; if any of it imported what is slow, all checks would fail."""


def check_light(words, code, *, may_import=(), nor=(), **environment):
    """Run a command; check what it exits with, and what it imported. Return what it said.

    It may import nothing that is `SLOW` but ``may_import``, nor what ``nor`` names.
    """
    asked = {
        "words": words,
        "code": code,
        "forbidden": sorted({*SLOW} - {*may_import} | {*nor}),
        "environment": {**os.environ, **environment},
        "folder": os.getcwd(),
    }
    forks = _forking(START if nor else (*MOST, *sorted(may_import)))
    forks.stdin.write(json.dumps(asked) + "\n")
    forks.stdin.flush()
    answer = forks.stdout.readline()
    assert answer, "the process that forks has ended"
    done = json.loads(answer)
    assert done["status"] == 0, done["said"]
    return done["said"]


@functools.cache
def _forking(modules):
    """Start a process that forks for commands; it ends with this one."""
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.light", *modules],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end():
        started.stdin.close()
        started.wait()

    atexit.register(end)
    return started


def serve(modules):
    """Import modules, then fork for each command that is asked for, and say how it ended."""
    for module in modules:
        importlib.import_module(module)
    if "numba" in modules:
        import numba

        numba.njit(lambda one: one)(1)  # it loads most of itself where it first compiles
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                _run(json.loads(line), said)
            _, status = os.waitpid(child, 0)
            said.seek(0)
            answer = {"status": status, "said": said.read().decode()}
        print(json.dumps(answer), flush=True)


def _run(asked, said):
    """Be the command: end this process, with 0 if it did what is asked."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(said.fileno(), 2)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        _check(asked)
        status = 0
    except BaseException:  # the parent is told by the status
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _check(asked):
    from distributed_privrl.cli import main

    sys.argv = ["privrl", *asked["words"]]
    ended = None
    try:
        main()
    except SystemExit as stop:
        ended = stop.code
    assert ended == asked["code"], ended
    loaded = {*asked["forbidden"]} & {*sys.modules}
    assert not loaded, loaded


if __name__ == "__main__":
    serve(sys.argv[1:])
