"""Pairs of a recording and a generator: what is registered of them, and what makes one.

Everything that a figure depends on is in the settings, and whatever is drawn (the held-out mazes,
the seeds of recordings) is drawn by their hash. So nobody can choose a maze or a seed after the
settings are committed, and no setting can have been chosen on them before.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from benchmarks import cells
from benchmarks.protocol import ladder
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.protocol.ladder_cells import JUDGE, PUBLIC_MAZES, TABLE
from benchmarks.protocol.registration import settings_hash
from benchmarks.protocol.starts import STARTS
from benchmarks.protocol.statistics import FEWEST_PAIRS, LEAST_REAL, WIDEST_SHARE
from benchmarks.utility_cells import merged
from benchmarks.utility_tasks import TABLE_MAZES, TASKS, Task
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.random_mazes import (
    RANDOM_MAZES,
    random_maze,
    random_maze_id,
)

REAL = "real"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "privorl_ar": {},
    "hybrid": {"method": "privorl_ar", "training": {"pretraining": {"from": "marginals"}}},
    "marginals": {},
    "privorl_n": {},
}
"""What is compared with real rows: what differs from the scale's settings of the method.

The hybrid has no public rows. It pre-trains on marginals, for half of epsilon.
"""

_WITHOUT_PUBLIC_ROWS = ("hybrid",)
EPSILON = 1.0
"""Of a generator that is trained on a sensitive maze."""

HELD_OUT = ("held-out-1", "held-out-2")
SENSITIVE = (*TABLE_MAZES, *HELD_OUT)
LADDERS: Mapping[str, tuple[str, ...]] = {
    **{maze: (f"eval-{maze}",) for maze in TABLE_MAZES},
    **{maze: (maze,) for maze in PUBLIC_MAZES},
    **dict.fromkeys(HELD_OUT, PUBLIC_MAZES[:2]),  # as large as eval-medium, and as long
}
"""The public mazes whose ladders the judge must have ordered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """The settings of all pairs of a scale.

    Args:
        scale: of recordings and generators.
    """

    scale: str

    @property
    def settings(self) -> dict[str, Any]:
        """What is hashed and committed before a sensitive set is opened."""
        scale = TABLE.scales[self.scale]
        return {
            "scale": self.scale,
            "transitions": scale.steps,
            "released": scale.steps,
            "delta": scale.delta,
            "methods": {name: self.method_values(name) for name in METHODS},
            "public": {maze: TASKS[maze].public for maze in TABLE_MAZES} | self._held_out_public,
            "ladders": {maze: LADDERS[maze] for maze in SENSITIVE},
            "ladder": {"fewer": ladder.FEWER, "blur": ladder.BLUR, "margin": ladder.MARGIN},
            "judge": {JUDGE: dataclasses.asdict(GridSettings()), "starts": STARTS},
            "pairs": {"fewest": FEWEST_PAIRS, "widest": WIDEST_SHARE, "least": LEAST_REAL},
        }

    @property
    def _held_out_public(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(HELD_OUT, TABLE_MAZES)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return settings_hash(self.settings)

    def method_values(self, method: str) -> dict[str, Any]:
        """Return the sections of a method's configuration that are no default."""
        changes = METHODS[method]
        method = str(changes.get("method", method))
        return merged(
            {"method": method, **TABLE.scales[self.scale].overrides.get(method, {})}, changes
        )

    def drawn(self, *what: object) -> int:
        """Return a number below 2**31 that the settings' hash decides."""
        text = "/".join(map(str, (self.digest, *what)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def held_out_maze(self, name: str) -> int:
        """Return the number of a held-out maze; no two are the same."""
        numbers: list[int] = []
        draw = 0
        while len(numbers) <= HELD_OUT.index(name):
            number = self.drawn("maze", draw) % RANDOM_MAZES
            draw += 1
            if number not in numbers:
                numbers.append(number)
        return numbers[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair(cells.Cell):
    """A recording, judged by its own rows or by those of a generator trained on it.

    Args:
        scale: of recordings and generators.
        maze: one of `SENSITIVE`; or a public one, to try settings on.
        variant: ``real``, or one of `METHODS`.
        epsilon: None: real rows, or no privacy.
        seed: number of the pair; recording and generator have random streams of their own.
    """

    scale: str
    maze: str
    variant: str
    epsilon: float | None
    seed: int

    @property
    def name(self) -> str:
        """Name of the cell's files."""
        return f"pair-{super().name}"

    @cached_property
    def registered(self) -> Registered:
        """The settings behind it."""
        return Registered(scale=self.scale)

    @cached_property
    def task(self) -> Task:
        """The recording."""
        if self.maze not in HELD_OUT:
            task, options = TASKS[self.maze], {}
        else:
            number = self.registered.held_out_maze(self.maze)
            options = {"maze": number}
            task = Task(
                dataset="",
                recipe="maze2d-random",
                environment=random_maze_id(number),
                public=TABLE_MAZES,
                maze=random_maze(number),
            )
        dataset = f"pairs/{self.maze}-{self.seed}-v0"
        return dataclasses.replace(task, dataset=dataset, options=options)

    @property
    def recording_seed(self) -> int:
        """Public seed of the recording."""
        return self.registered.drawn("recording", self.maze, self.seed)

    @property
    def sensitive(self) -> bool:
        """Whether the recording has to be opened; rows of other mazes are public."""
        return self.maze in SENSITIVE

    @property
    def public(self) -> tuple[str, ...]:
        """The tasks whose rows the generator may read."""
        return () if self.variant in (REAL, *_WITHOUT_PUBLIC_ROWS) else self.task.public

    @property
    def output(self) -> str:
        """Id of the synthetic dataset."""
        return f"synthetic/{self.name}-v0"

    @property
    def settings(self) -> dict[str, Any]:
        """What a figure depends on."""
        return {**dataclasses.asdict(self), "registered": self.registered.digest}

    def run_values(self) -> dict[str, Any]:
        """Return the configuration of the generator's run.

        Raises:
            ConfigError: the cell is of real rows.
        """
        if self.variant == REAL:
            raise ConfigError(f"{self.name}: nothing is trained for real rows")
        scale = TABLE.scales[self.scale]
        values: dict[str, Any] = {
            "seed": self.seed,
            "data": {
                "sensitive": self.task.dataset,
                "public": [TASKS[name].dataset for name in self.public],
                "unit": "transition",
                "units": scale.steps,
                "environment": self.task.environment,
            },
            "privacy": {"epsilon": self.epsilon, "delta": scale.delta},
            "output": {"dataset": self.output, "size": scale.steps},
            "evaluation": {"trainers": []},
        }
        return merged(values, self.registered.method_values(self.variant))
