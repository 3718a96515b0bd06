"""The equations of HIV in the blood, integrated for one patient after the other, compiled.

Reference: Adams et al., "Dynamic multidrug therapies for HIV: optimal and STI control approaches"
(2004), equation 1, with the constants of Ernst et al. (2006), table I.
"""

import numba

INTEGRATION_DAYS = 0.05
"""Longest step of the integration."""

_LARGEST_CHANGE = 0.8
"""Steps are no longer than this over the rate at which macrophages are infected: where there is
very much virus, longer ones would be unstable."""

_SOURCE, _OTHER_SOURCE = 1e4, 31.98
_DEATH = 0.01
_RELATIVE_EFFICACY = 0.34
_INFECTION, _OTHER_INFECTION = 8e-7, 1e-4
_INFECTED_DEATH = 0.7
_KILLING = 1e-5
_VIRIONS = 100.0
_VIRUS_DEATH = 13.0
_DEFENCE_SOURCE = 1.0
_DEFENCE_BIRTH, _BIRTH_SATURATION = 0.3, 100.0
_DEFENCE_LOSS, _LOSS_SATURATION = 0.25, 500.0
_DEFENCE_DEATH = 0.1


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _slope(state, infection, other_infection, production):  # type: ignore[no-untyped-def]
    """Return the derivative of six numbers by days."""
    cells, infected, others, other_infected, virus, defence = state
    newly = infection * virus * cells
    other_newly = other_infection * virus * others
    loss = _INFECTED_DEATH + _KILLING * defence
    ill = infected + other_infected
    growth = _DEFENCE_BIRTH * ill / (ill + _BIRTH_SATURATION)
    growth -= _DEFENCE_LOSS * ill / (ill + _LOSS_SATURATION) + _DEFENCE_DEATH
    return (
        _SOURCE - _DEATH * cells - newly,
        newly - loss * infected,
        _OTHER_SOURCE - _DEATH * others - other_newly,
        other_newly - loss * other_infected,
        production * ill - _VIRUS_DEATH * virus - newly - other_newly,
        _DEFENCE_SOURCE + growth * defence,
    )


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _moved(state, slope, step):  # type: ignore[no-untyped-def]
    """Return ``state + step * slope``."""
    a, b, c, d, e, f = state
    u, v, w, x, y, z = slope
    return a + step * u, b + step * v, c + step * w, d + step * x, e + step * y, f + step * z


@numba.njit(cache=True, nogil=True, error_model="numpy")
def integrate(states, efficacies, days, moved):  # type: ignore[no-untyped-def]
    """Write where ``states`` are after some days: the fourth order Runge-Kutta method.

    Args:
        states: (M, 6) float64; see `hiv.HivTreatment`.
        efficacies: (M, 2) float64, of the reverse transcriptase and the protease inhibitor.
        days: how long.
        moved: (M, 6) float64, written.
    """
    for row in range(len(states)):
        first, second = efficacies[row, 0], efficacies[row, 1]
        infection = (1 - first) * _INFECTION
        other_infection = (1 - _RELATIVE_EFFICACY * first) * _OTHER_INFECTION
        production = (1 - second) * _VIRIONS * _INFECTED_DEATH
        now = states[row]
        state = (now[0], now[1], now[2], now[3], now[4], now[5])
        left = days
        while left > 0:
            step = min(INTEGRATION_DAYS, left)
            rate = other_infection * state[4]
            if rate * step > _LARGEST_CHANGE:
                step = _LARGEST_CHANGE / rate
            one = _slope(state, infection, other_infection, production)
            two = _slope(_moved(state, one, step / 2), infection, other_infection, production)
            three = _slope(_moved(state, two, step / 2), infection, other_infection, production)
            four = _slope(_moved(state, three, step), infection, other_infection, production)
            for slope, share in ((one, 6), (two, 3), (three, 3), (four, 6)):
                state = _moved(state, slope, step / share)
            left -= step
        for column, value in enumerate(state):
            moved[row, column] = value
