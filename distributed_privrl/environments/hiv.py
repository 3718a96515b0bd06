"""Treatment of HIV with two drugs that may be interrupted, many patients at a time.

A model of the blood of an untreated patient, in which short interruptions can train the immune
system. It is a benchmark for algorithms and guides no treatment.

Reference: Ernst et al., "Clinical data based optimal STI strategies for HIV: a reinforcement
learning approach" (2006), section III; expert-level DP, appendix B.1, for steps of 20 days.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.simulators import Step, check_physics

HIV = "privrl/HIVTreatment-v0"
HORIZON = 50
"""Steps of an episode."""

DAYS = 20.0
_REWARD_UNIT = 1e6
"""What rewards are divided by; expert-level DP's figures divide returns by it."""

EFFICACIES = np.array([[0.0, 0.0], [0.7, 0.0], [0.0, 0.3], [0.7, 0.3]])
"""Of the reverse transcriptase and of the protease inhibitor under each action, (4, 2)."""

UNTREATED = np.array([163573.0, 11945.0, 5.0, 46.0, 63919.0, 24.0])
"""The unhealthy equilibrium without treatment, where episodes start, to the nearest cell."""

_LEAST_LOGARITHM, _MOST_LOGARITHM = -5.0, 8.0


@dataclass(frozen=True, kw_only=True, eq=False)
class HivTreatment:
    """States ``(M, 6)``: six concentrations in the blood, per millilitre. Nothing terminates.

    T lymphocytes, infected ones, macrophages, infected ones, free virus, cytotoxic lymphocytes.

    Args:
        first_penalty: of the squared efficacy of the first drug, of every row or ``(M,)``.
        second_penalty: of that of the second drug.
    """

    first_penalty: NDArray[np.float64] | float = 20000.0
    second_penalty: NDArray[np.float64] | float = 2000.0

    environment = HIV
    actions = len(EFFICACIES)

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other penalties, ``(M,)`` by name.

        Raises:
            ConfigError: a name that is not one of its penalties.
        """
        check_physics(physics, ("first_penalty", "second_penalty"), HIV)
        return type(self)(**physics)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states, all the same."""
        return np.tile(UNTREATED, (count, 1))

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return decimal logarithms, clipped to [-5, 8], ``(M, 6)``."""
        logarithms = np.log10(np.maximum(states, 10**_LEAST_LOGARITHM))
        return np.minimum(logarithms, _MOST_LOGARITHM).astype(np.float32)

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return the states of ``observations`` ``(M, 6)``."""
        powers: NDArray[np.float64] = 10.0 ** observations.astype(np.float64)
        return powers

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Treat for 20 days with ``actions`` ``(M,)`` int64."""
        moved = treat(states, EFFICACIES[actions])
        return Step(moved, self.rewards(moved, actions), np.zeros(len(states), dtype=bool))

    def rewards(self, states: NDArray[np.float64], actions: NDArray[Any]) -> NDArray[np.float64]:
        """Return what arriving in ``states`` ``(M, 6)`` under ``actions`` earns, in millions."""
        first, second = EFFICACIES[actions].T
        drugs = self.first_penalty * first**2 + self.second_penalty * second**2
        earned: NDArray[np.float64] = 1e3 * states[:, 5] - 0.1 * states[:, 4] - drugs
        return earned / _REWARD_UNIT


def treat(
    states: NDArray[np.float64], efficacies: NDArray[np.float64], *, days: float = DAYS
) -> NDArray[np.float64]:
    """Return where ``states`` are after some days; see `blood.integrate`.

    Args:
        states: (M, 6).
        efficacies: (M, 2) of both drugs, in [0, 1].
        days: how long.

    Returns:
        ``(M, 6)``.
    """
    from distributed_privrl.environments.blood import integrate

    moved = np.empty(states.shape)
    integrate(
        np.ascontiguousarray(states, dtype=np.float64),
        np.ascontiguousarray(efficacies, dtype=np.float64),
        float(days),
        moved,
    )
    return moved


class HivEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A patient who is treated for 50 times 20 days.

    The observation is the decimal logarithm of the state, see `HivTreatment`. Actions: no drug, the
    first (efficacy 0.7), the second (0.3), both. Rewards are in millions:
    ``(1000 E - 0.1 V - p1 e1^2 - p2 e2^2) / 1e6`` at the state that the step leads to. Nothing
    terminates.

    Args:
        first_penalty: p1.
        second_penalty: p2.
        efficacy_noise: standard deviation of what is added to the efficacy of a drug that is
            given; the penalty is that of the nominal one.

    Raises:
        ConfigError: a number below zero.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        *,
        first_penalty: float = 20000.0,
        second_penalty: float = 2000.0,
        efficacy_noise: float = 0.0,
        render_mode: None = None,
    ) -> None:
        given = {
            "first_penalty": first_penalty,
            "second_penalty": second_penalty,
            "efficacy_noise": efficacy_noise,
        }
        for name, value in given.items():
            if not 0 <= value < np.inf:
                raise ConfigError(f"{name} must be a finite number >= 0, got {value!r}")
        self._patient = HivTreatment(first_penalty=first_penalty, second_penalty=second_penalty)
        self._noise = efficacy_noise
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(_LEAST_LOGARITHM, _MOST_LOGARITHM, shape=(6,))
        self.action_space = gymnasium.spaces.Discrete(len(EFFICACIES))
        self._state = UNTREATED[None]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start untreated.

        Args:
            seed: seeds the noise.
            options: ``{"state": (six numbers)}`` starts there instead.

        Raises:
            ConfigError: an unknown option, or a state that is not six finite numbers >= 0.
        """
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - {"state"})
        if unknown:
            raise ConfigError(f"reset options {unknown} are unknown (known: state)")
        state = np.asarray((options or {}).get("state", UNTREATED), dtype=np.float64)
        if state.shape != (6,) or not np.isfinite(state).all() or (state < 0).any():
            raise ConfigError(f"reset option state must be 6 finite numbers >= 0, got {state!r}")
        self._state = state[None]
        return self._patient.observe(self._state)[0], {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Treat for 20 days; see `gymnasium.Env.step`.

        Raises:
            ConfigError: no such action.
        """
        if action not in self.action_space:
            raise ConfigError(f"action must lie in {self.action_space}, got {action!r}")
        actions = np.array([action], dtype=np.int64)
        efficacies = noisy_efficacies(actions, np.array([self._noise]), self.np_random)
        self._state = treat(self._state, efficacies)
        reward = float(self._patient.rewards(self._state, actions)[0])
        return self._patient.observe(self._state)[0], reward, False, False, {}


def noisy_efficacies(
    actions: NDArray[Any], noise: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return efficacies ``(M, 2)``; those of drugs that are given vary, within [0, 1].

    Args:
        actions: (M,).
        noise: (M,) standard deviations.
        generator: source of the noise; nothing is drawn where all are zero.
    """
    exact: NDArray[np.float64] = EFFICACIES[actions]
    if not noise.any():
        return exact
    drawn = exact + noise[:, None] * generator.standard_normal(exact.shape)
    efficacies: NDArray[np.float64] = np.where(exact > 0, np.clip(drawn, 0.0, 1.0), 0.0)
    return efficacies
