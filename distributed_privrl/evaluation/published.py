"""What the papers' own agents earned, to show beside the same cell of a run.

Only cells that can be read without doubt are here: the means over cells that the paper's text gives
agree with them.
"""

from dataclasses import dataclass

EPSILONS = (1.0, 10.0)
"""The epsilons of both tables; each pair of numbers below is in this order."""

_METHODS = {"privorl_n": "PrivORL-n", "privorl_j": "PrivORL-j", "privorl_j_unet": "PrivORL-j-U"}
_TABLES = {"privorl_n": "I", "privorl_j": "II", "privorl_j_unet": "II"}
_DATASETS = {
    "privrl/Maze2D-umaze": "maze2d-umaze",
    "privrl/Maze2D-medium": "maze2d-medium",
    "privrl/Maze2D-large": "maze2d-large",
    "HalfCheetah": "halfcheetah-medium-replay",
}
"""D4RL's dataset by our environment, without its version."""

_AGENTS = ("edac", "iql", "td3bc")
_REAL = {
    "maze2d-umaze": (70.8, 71.0, 73.6),
    "maze2d-medium": (73.0, 93.1, 53.3),
    "maze2d-large": (89.9, 85.9, 96.8),
    "halfcheetah-medium-replay": (60.8, 48.3, 48.5),
}
_RETURNS = {
    "privorl_n": {
        "maze2d-umaze": ((63.2, 69.1), (60.1, 70.3), (30.6, 60.3)),
        "maze2d-medium": ((32.0, 45.6), (73.5, 90.7), (33.8, 50.4)),
        "maze2d-large": ((62.4, 80.6), (50.3, 81.0), (61.3, 75.3)),
        "halfcheetah-medium-replay": ((38.7, 48.8), (25.2, 36.9), (27.4, 45.2)),
    },
    "privorl_j": {
        "maze2d-umaze": ((45.5, 52.2), (42.1, 49.8), (38.7, 49.9)),
        "maze2d-medium": ((31.5, 35.0), (23.4, 66.3), (31.1, 38.0)),
        "maze2d-large": ((20.5, 47.5), (9.9, 37.7), (29.5, 35.6)),
    },
    "privorl_j_unet": {
        "maze2d-umaze": ((11.2, 32.0), (24.6, 28.9), (26.8, 38.8)),
        "maze2d-medium": ((13.5, 16.4), (5.5, 14.1), (6.7, 10.8)),
        "maze2d-large": ((10.9, 19.8), (9.8, 31.9), (9.9, 14.3)),
    },
}


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One number of a paper's table: a mean over five seeds, normalised as D4RL does.

    Args:
        method: as the paper calls it.
        dataset: of D4RL, that the method was run on.
        agent: name of the plain loop of the same agent.
        epsilon: of the method.
        normalised_return: of agents trained on the synthetic data.
        real_return: normalised, of the same agent trained on the real data.
        source: paper and table.
    """

    method: str
    dataset: str
    agent: str
    epsilon: float
    normalised_return: float
    real_return: float
    source: str

    @property
    def share(self) -> float:
        """The share of the real data's return."""
        return self.normalised_return / self.real_return

    def __str__(self) -> str:
        return (
            f"{self.method} on D4RL's {self.dataset} at epsilon {self.epsilon:g}:"
            f" {self.share:.2f} of the same agent on real data ({self.source})"
        )


def published_cell(
    method: object, environment: str | None, agent: str, epsilon: float | None
) -> PublishedCell | None:
    """Return the paper's cell of the nearest epsilon that it lists; None where there is none.

    Args:
        method: as configurations and certificates call it.
        environment: Gymnasium id.
        agent: name of a plain loop.
        epsilon: of the run; None: it was not private.

    Reference: PrivORL, tables I and II.
    """
    if epsilon is None or environment is None or agent not in _AGENTS:
        return None
    dataset = _DATASETS.get(environment.rpartition("-v")[0], "")
    cells = _RETURNS.get(str(method), {}).get(dataset)
    if cells is None:
        return None
    column = _AGENTS.index(agent)
    nearest = min(EPSILONS, key=lambda listed: abs(listed - epsilon))
    return PublishedCell(
        method=_METHODS[str(method)],
        dataset=dataset,
        agent=agent,
        epsilon=nearest,
        normalised_return=cells[column][EPSILONS.index(nearest)],
        real_return=_REAL[dataset][column],
        source=f"PrivORL, table {_TABLES[str(method)]}",
    )
