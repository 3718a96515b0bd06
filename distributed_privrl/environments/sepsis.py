"""ICU-Sepsis: the treatment of sepsis as an MDP, estimated from records of intensive care.

Its numbers come with the package ``icu-sepsis`` (MIT licence). They describe a simulator that was
fitted to the records of MIMIC-III: nothing here says how patients should be treated.

Reference: Choudhary et al., "ICU-Sepsis: A Benchmark MDP Built from Real Medical Data".
"""

import functools
import importlib.util
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import MissingExtraError, StorageError
from distributed_privrl.environments.tabular import TabularMdp

DEATH = 713
SURVIVAL = 714
OVER = 715
"""The state after death or survival."""


def icu_sepsis(horizon: int = 20) -> TabularMdp:
    """Return ICU-Sepsis: 716 states, 25 actions, and the clinicians' policy as the behaviour.

    States 0 to 712 are of a patient under treatment; 713 is death, 714 survival and 715 what
    follows either: all three are terminal. An action is five levels of fluids by five of
    vasopressors. Arriving at survival earns 1, all else 0, so that a value is a probability of
    survival (within the horizon). An action that the records rarely show in a state has the mean
    transitions of that state's other actions (the package's default).

    Args:
        horizon: number of steps H; patients who are still under treatment then count as not
            survived.

    Raises:
        MissingExtraError: the package icu-sepsis is not installed.
        StorageError: its file is not the one that is known.
    """
    transitions, initial, behaviour = _dynamics()
    states, actions = behaviour.shape[1:]
    return TabularMdp(
        transitions=transitions,
        rewards=np.zeros((1, states, actions)),
        arrival_rewards=np.eye(states)[SURVIVAL],
        initial=initial,
        terminal=np.arange(states) >= DEATH,
        horizon=horizon,
        behaviour=behaviour,
    )


def icu_sepsis_features() -> NDArray[np.float64]:
    """Return public features of each state: a constant, and the centre of its cluster of records.

    The package gives 47 standardised measurements a state, up to 15.3 long. They are divided by the
    largest norm, so that the longest has norm 1; a constant 1 is put before them, so that a linear
    value needs not be 0 at an average patient; and both are divided by the square root of 2, so
    that no norm exceeds 1. The three terminal states are zeros: their linear value is 0.

    Returns:
        ``(716, 48)``: column 0 the constant, columns 1 to 47 the measurements.

    Raises:
        MissingExtraError: the package icu-sepsis is not installed.
        StorageError: its file cannot be read.
    """
    (centres,) = _arrays("state_cluster_centers")
    scaled = centres / np.linalg.norm(centres, axis=1).max()
    features: NDArray[np.float64] = np.hstack([np.ones((len(centres), 1)), scaled]) / np.sqrt(2)
    features[DEATH:] = 0.0
    return features


@functools.cache
def _dynamics() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return transitions ``(1, S, A, S)``, initial ``(S,)`` and behaviour ``(1, S, A)``."""
    transitions, rewards, initial, behaviour = _arrays("tx_mat", "r_mat", "d_0", "expert_policy")
    shape = (OVER + 1, 25, OVER + 1)
    expected = np.broadcast_to(np.arange(OVER + 1) == SURVIVAL, (DEATH, *shape[1:]))
    if transitions.shape != shape or not np.array_equal(rewards[:DEATH], expected):
        raise StorageError(
            f"the dynamics of icu-sepsis are not {shape} with a reward at state {SURVIVAL} alone:"
            " install icu-sepsis 2.0.1"
        )
    behaviour[DEATH:] = 1 / behaviour.shape[1]
    for array in (transitions, initial, behaviour):
        array.setflags(write=False)
    return transitions[None], initial, behaviour[None]


def _arrays(*names: str) -> list[NDArray[np.float64]]:
    """Return arrays of the package's file by name.

    The package itself is not imported, for it brings and warns about the old ``gym``.
    """
    spec = importlib.util.find_spec("icu_sepsis")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("icu-sepsis", "envs")
    path = Path(spec.submodule_search_locations[0]) / "envs" / "assets" / "dynamics.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise StorageError(f"{path} cannot be read ({error}): install icu-sepsis again") from error
