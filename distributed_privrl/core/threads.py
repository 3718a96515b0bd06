"""The one place where threads are capped.

Two spinning OpenMP threads are 60 times slower than one on small operations of a busy machine, and
Ray starts one process a worker: parallelism comes from workers, not from threads inside them.
"""

import os
from collections.abc import Mapping

THREAD_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


def cap_threads() -> None:
    """Give this process and its children one thread a library, unless the user said otherwise.

    Must run before numpy or torch is imported: the package's ``__init__`` calls it first.
    """
    for name, value in THREAD_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
