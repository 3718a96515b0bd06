"""A disk that is full, made by the system's own limit on the size of a file."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes: writing more is `OSError` EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
