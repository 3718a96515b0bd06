"""Objects that hold a key stay in the process that made them."""

import os
import weakref
from typing import Any, NoReturn

from distributed_privrl.core.errors import UnsafeError


class ProcessSecret:
    """Base of sources that hold a key: not pickled, not copied, of no use after a fork."""

    def __init__(self) -> None:
        self._gone: str | None = None
        _SECRETS.add(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            UnsafeError: always.
        """
        raise UnsafeError(
            f"{type(self).__name__} holds a key and never leaves its process: build one where it"
            " draws"
        )

    def _check_usable(self) -> None:
        if self._gone is not None:
            raise UnsafeError(f"this {type(self).__name__} {self._gone}: build a new one")

    def _forget(self, reason: str) -> None:
        self._gone = reason


_SECRETS: weakref.WeakSet[ProcessSecret] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for secret in list(_SECRETS):
        secret._forget("belongs to the process that was forked")


os.register_at_fork(after_in_child=_forget_after_fork)
