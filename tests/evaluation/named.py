"""Small tables with named columns."""

import numpy as np
import pandas as pd

from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import CATEGORY, Rows
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.writing import new_info


def numbers(*values: float) -> pd.Series:
    return pd.Series(values, dtype=np.float64)


def names(*values: object) -> pd.Series:
    return pd.Series(values, dtype=object).astype(CATEGORY)


def rows_of(count: int, rng: np.random.Generator, *, shift: float = 0.0) -> Rows:
    state = rng.normal(size=count)
    frame = pd.DataFrame(
        {
            "s": state,
            "a": names(*rng.integers(2, size=count)),
            "reward": state + shift,
            "next_s": state + 1,
            "terminated": names(*np.zeros(count, int)),
        }
    )
    units = np.repeat(np.arange(count // 4), 4).astype(np.uint64)
    ends = np.arange(count) % 4 == 3
    return Rows(
        frame=frame, state=("s",), action=("a",), successor=("next_s",), units=units, ends=ends
    )


def info_of(observation: Space, action: Space, **more: object) -> DatasetInfo:
    return new_info(
        "some/rows-v0",
        kind="transitions",
        layout="transitions",
        observation_space=observation,
        action_space=action,
        environment=None,
        unit_column=None,
        metadata=None,
        **{"declared": None, **more},  # type: ignore[arg-type]
    )
