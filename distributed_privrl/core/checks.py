"""Checks at the border: each names the argument and its value in the message."""

import difflib
import math
import re
from collections.abc import Iterable

from distributed_privrl.core.errors import ConfigError

_DATASET_ID = re.compile(r"([A-Za-z0-9][\w-]*/)*[A-Za-z0-9][\w-]*-v\d+", re.ASCII)


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number above zero.

    Raises:
        ConfigError: otherwise.
    """
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a finite number > 0, got {value!r}")
    return value


def check_probability(name: str, value: float, *, zero_allowed: bool = False) -> float:
    """Return ``value`` if it lies in (0, 1], or [0, 1] with ``zero_allowed``.

    Raises:
        ConfigError: otherwise.
    """
    if not (value <= 1 and (value >= 0 if zero_allowed else value > 0)):
        raise ConfigError(f"{name} must lie in {'[0' if zero_allowed else '(0'}, 1], got {value!r}")
    return value


def check_delta(name: str, value: float) -> float:
    """Return ``value`` if it lies in [0, 1).

    Raises:
        ConfigError: otherwise.
    """
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must lie in [0, 1), got {value!r}")
    return value


def check_dataset_id(name: str, value: str) -> str:
    """Return ``value`` if it is a dataset id as Minari spells them, ``[namespace/]name-vN``.

    Raises:
        ConfigError: otherwise.

    Example:
        >>> check_dataset_id("dataset", "clinic/stays-v0")
        'clinic/stays-v0'
    """
    if not _DATASET_ID.fullmatch(value):
        raise ConfigError(
            f"{name} must look like 'namespace/name-v0' (letters, digits, '-', '_'), got {value!r}"
        )
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the known names nearest to ``name``, or nothing where none is near.

    Args:
        name: as it was given; upper and lower case are one.
        known: names that are right.

    Example:
        >>> did_you_mean("iqll", ["bc", "iql"])
        'did you mean iql? '
    """
    spelt = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), spelt, n=3)
    return f"did you mean {', '.join(spelt[one] for one in near)}? " if near else ""
