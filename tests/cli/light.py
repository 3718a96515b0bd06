"""Commands in processes of their own, and what they may not import."""

import os
import subprocess
import sys

SLOW = frozenset({"ray", "torch", "jax", "mbi", "numba", "pandas", "matplotlib"})


def check_light(words, code, *, may_import=(), nor=(), **environment):
    """Run a command; check what it exits with, and what it imported. Return what it said.

    It may import nothing that is `SLOW` but ``may_import``, nor what ``nor`` names.
    """
    script = (
        "import sys\n"
        "from distributed_privrl.cli import main\n"
        f"sys.argv = ['privrl', *{words!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        f"    assert end.code == {code}, end.code\n"
        f"loaded = {set(SLOW - set(may_import)) | set(nor)!r} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
