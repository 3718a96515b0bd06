"""Values of a table's columns as numbers, by the kinds that its owner declared, and back."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.declared import (
    AnyKind,
    DateKind,
    FlagKind,
    LabelledKind,
    Value,
    value_text,
    width,
)

if TYPE_CHECKING:
    import pandas as pd

NO_CATEGORY = np.iinfo(np.int64).min
"""What is no category, as an integer outside every space."""
_MISSING, _UNKNOWN = -1, -2
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_FAR, _SIGNS = 1e12, np.array([-1, 1])
_MOST_WHOLE = 2.0**62
"""Seconds that no date is away from its origin."""
NO_COMMAS = "write decimals with a point (3.5, not 3,5), and nothing between thousands"
"""What to do where a column `has_decimal_commas`."""
_WITH_COMMA = r"[+-]?[\d.]*,?\d+"
"""A number as text, which may have a decimal comma, or marks between thousands."""
_EXACT = 2**24
"""Whole numbers beyond it are not exact in float32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Coded:
    """A column's values as numbers.

    Args:
        numbers: ``(N, C)`` as a Box holds them; NaN where there is none.
        codes: ``(N,)`` categories from 0, or whole numbers; `NO_CATEGORY` where there is none.
        missing: ``(N,)``: there is no value.
        unknown: ``(N,)``: there is one, but none that the kind knows.
    """

    numbers: NDArray[np.float64]
    codes: NDArray[np.int64]
    missing: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


def coded(series: "pd.Series[Any]", kind: AnyKind, *, name: str) -> Coded:
    """Return the values of a column as numbers.

    Args:
        series: N values.
        kind: what they are.
        name: of the column, with its file, for messages.

    Raises:
        ConfigError: numbers are asked for, and the column holds something else; or dates, and it
            holds neither dates nor ISO 8601 texts.
    """
    if isinstance(kind, LabelledKind):
        return _coded_labels(series, kind)
    if isinstance(kind, DateKind):
        values = _units_since(series, kind, name=name)
        unknown = np.abs(values) > _EXACT
    else:
        values = numbers(series, name=name)
        unknown = np.isinf(values)
    missing = np.isnan(values)
    held = values[:, None]
    if kind.missing == "indicator":
        held = np.stack([np.where(missing, 0.0, values), missing], axis=1)
    return Coded(numbers=held, codes=whole(values), missing=missing, unknown=unknown)


def numbers(series: "pd.Series[Any]", *, name: str) -> NDArray[np.float64]:
    """Return a column of numbers, (N,); a missing one is NaN.

    Raises:
        ConfigError: the column does not hold numbers.
    """
    from pandas.api.types import is_numeric_dtype

    if has_decimal_commas(series):
        raise ConfigError(f"{name} has numbers with a comma: {NO_COMMAS}")
    if not is_numeric_dtype(series.dtype):
        raise ConfigError(
            f"{name} must hold numbers, it has type {series.dtype}: declare under kinds what it"
            " holds, {type: category, values: [..]}, {type: date} or {type: flag, values: [no,"
            " yes]}"
        )
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def has_decimal_commas(series: "pd.Series[Any]") -> bool:
    """Say whether a column holds texts that are all numbers, some of them with a comma."""
    from pandas.api.types import is_object_dtype, is_string_dtype

    if not (is_object_dtype(series.dtype) or is_string_dtype(series.dtype)):
        return False
    try:
        there = series.dropna().astype(str).str.strip()
    except UnicodeDecodeError:  # bytes that are no text
        return False
    return bool(there.str.contains(",").any() and there.str.fullmatch(_WITH_COMMA).all())


def whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers, and `NO_CATEGORY` for the others."""
    proper = np.isfinite(values) & (np.abs(values) < 2**53)
    proper &= np.floor(values, where=proper, out=np.zeros(len(values))) == values
    return np.where(proper, np.where(proper, values, 0).astype(np.int64), NO_CATEGORY)


def _coded_labels(series: "pd.Series[Any]", kind: LabelledKind) -> Coded:
    import pandas as pd

    codes, distinct = pd.factorize(series)
    known = _Places(kind)
    places = np.array([known(value) for value in distinct] + [_MISSING], np.int64)[codes]
    missing, unknown = places == _MISSING, places == _UNKNOWN
    if kind.missing == "own":
        places[missing] = len(kind.labels) - 1
    there, size = places >= 0, width(kind)
    if size == 1:
        held = np.where(there, places, np.nan)[:, None].astype(np.float64)
    else:
        held = np.where(there[:, None], places[:, None] == np.arange(size), np.nan)
    whole_codes = np.where(there, places, NO_CATEGORY)
    return Coded(numbers=held, codes=whole_codes, missing=missing, unknown=unknown)


class _Places:
    """Finds the place of a value among those of a kind: by its text, or as a number."""

    def __init__(self, kind: LabelledKind) -> None:
        self._texts = {value_text(value): place for place, value in enumerate(kind.values)}
        self._numbers = {
            float(value): place
            for place, value in enumerate(kind.values)
            if not isinstance(value, str)
        }
        if isinstance(kind, FlagKind) and kind.values == (0, 1):
            self._texts |= {"False": 0, "True": 1}
        for text in [text for text in self._texts if text in ("True", "False")]:
            place = self._texts[text]
            self._texts = {text.lower(): place, text.upper(): place} | self._texts

    def __call__(self, value: Any) -> int:
        found = self._texts.get(value_text(value))
        if found is None and self._numbers:
            try:
                found = self._numbers.get(float(value))
            except (TypeError, ValueError):
                return _UNKNOWN
        return _UNKNOWN if found is None else found


def texts(kind: AnyKind) -> frozenset[str]:
    """Return the texts that are values of a kind, whatever else they mean to a reader (``NA``)."""
    return frozenset(map(value_text, kind.values if isinstance(kind, LabelledKind) else ()))


def times(series: "pd.Series[Any]", *, name: str) -> NDArray[np.float64]:
    """Return dates or ISO 8601 texts as seconds since 1970 (UTC, if they have a zone), (N,).

    A missing one is NaN.

    Raises:
        ConfigError: the column holds something else.
    """
    import pandas as pd

    numeric = pd.api.types.is_numeric_dtype(series.dtype)
    try:
        if numeric:
            raise TypeError
        parsed = pd.to_datetime(series, format="ISO8601", utc=True)
    except (ValueError, TypeError):
        raise ConfigError(f"{name} must hold dates or ISO 8601 times (2024-05-31)") from None
    missing = parsed.isna().to_numpy()
    micro = parsed.dt.tz_localize(None).astype("datetime64[us]").to_numpy().astype(np.int64)
    return np.where(missing, np.nan, micro / 1e6)


def _units_since(series: "pd.Series[Any]", kind: DateKind, *, name: str) -> NDArray[np.float64]:
    origin = kind.origin_time.replace(tzinfo=datetime.UTC).timestamp()
    return np.floor((times(series, name=name) - origin) / _SECONDS[kind.unit])


def decoded(block: NDArray[Any], kind: AnyKind) -> Any:
    """Return numbers of a Box ``(N, C)`` as the values of a column, ``(N,)``; see `coded`.

    A category is the largest of its columns, a flag is yes above one half.
    """
    if isinstance(kind, LabelledKind):
        places = block[:, 0] > 0.5 if block.shape[1] == 1 else block.argmax(axis=1)
        there = np.isfinite(block).all(axis=1)
        if block.shape[1] > 1:
            there &= (block > 0).any(axis=1)
        return labelled(np.where(there, places, NO_CATEGORY).astype(np.int64), kind)
    values = block[:, 0]
    if kind.missing == "indicator":
        values = np.where(block[:, 1] > 0.5, np.nan, values)
    if isinstance(kind, DateKind):
        return _dates(values, kind)
    return _whole_numbers(values) if kind.whole else values


def _whole_numbers(values: NDArray[Any]) -> Any:
    """Return the nearest whole numbers; what is not finite, or too large for one, is missing."""
    import pandas as pd

    numbers = np.rint(values.astype(np.float64))
    there = np.isfinite(numbers) & (np.abs(numbers) < _MOST_WHOLE)
    return pd.arrays.IntegerArray(np.where(there, numbers, 0).astype(np.int64), ~there)


def labelled(places: NDArray[np.int64], kind: LabelledKind) -> Any:
    """Return the values of categories from 0, ``(N,)``; what is none is missing.

    The type follows from the kind alone, so that chunks of a file agree.
    """
    import pandas as pd

    labels: Sequence[Value | None] = kind.labels
    there = (places >= 0) & (places < len(labels))
    type_of: Mapping[type, str] = {bool: "boolean", int: "Int64", float: "Float64"}
    types = {type(value) for value in kind.values}
    (of,) = types if len(types) == 1 else (str,)
    values: list[Any] = list(labels)
    if of is str:
        values = [None if one is None else value_text(one) for one in labels]
    dictionary: Any = pd.Series([*values, None], dtype=type_of.get(of, "string")).array
    return dictionary.take(np.where(there, places, len(labels)))


def _dates(values: NDArray[Any], kind: DateKind) -> Any:
    finite, second = np.isfinite(values), _SECONDS[kind.unit]
    units = np.clip(np.where(finite, values, 0).astype(np.float64), *(_FAR / second * _SIGNS))
    seconds = np.rint(units).astype(np.int64) * second
    moments = np.datetime64(kind.origin_time, "s") + seconds.astype("timedelta64[s]")
    moments = np.clip(moments, np.datetime64("0001-01-01", "s"), np.datetime64("9999-12-31", "s"))
    moments[~finite] = np.datetime64("NaT")
    return moments
