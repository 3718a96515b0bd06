"""Arrays in D4RL's form, the schema that reads them, and files that hold them."""

import h5py
import numpy as np
import pytest

D4RL = """\
columns:
  observation: observations
  action: actions
  reward: rewards
  terminated: terminals
  truncated: timeouts
  {extra}
spaces:
  observation: {{type: box}}
  action: {{type: box, low: -1, high: 1}}
split_at_flags: {split}
"""
SUCCESSORS = "next_observation: next_observations"


def write_npz(path, arrays):
    np.savez(path, **arrays)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            file[name] = values.astype(object) if values.dtype.kind == "U" else values


def arrays_of(written):
    rows = written.transitions("transition")
    return {
        "observations": rows.observations,
        "actions": rows.actions,
        "rewards": rows.rewards,
        "next_observations": rows.next_observations,
        "terminals": rows.terminated,
        "timeouts": rows.truncated,
        "infos/seed": np.zeros(3),
    }


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))
