"""What the cells of a utility table are made of: mazes, and rows of more columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import environment_id, reference_returns
from distributed_privrl.environments.mazes import MAZES, Maze
from distributed_privrl.environments.references import ReferenceReturns

TABLE_MAZES = ("umaze", "medium", "large")
FAMILIES = (TABLE_MAZES, ("eval-umaze", "eval-medium", "eval-large"))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Recorded rows, sensitive in one cell and public in another.

    Args:
        dataset: their id.
        recipe: of the recording.
        environment: Gymnasium id, where agents act.
        public: tasks whose rows are public where this one's are sensitive.
        options: of the recipe.
        maze: its map, if it is one.
    """

    dataset: str
    recipe: str
    environment: str
    public: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    maze: Maze | None = None

    def reference(self, store: DatasetStore) -> ReferenceReturns:
        """Return what the random policy earns, and the planner or the recording's last policy."""
        if self.maze is not None:
            return reference_returns(self.environment)
        found = store.info(self.dataset).metadata.open(Purpose.OWNER)["reference_returns"]
        return ReferenceReturns(
            random=found["random"], planner=found["expert"], episodes=found["episodes"]
        )


def _maze(name: str, family: tuple[str, ...]) -> Task:
    return Task(
        dataset=f"maze/{name}-v0",
        recipe=f"maze2d-{name}",
        environment=environment_id(name, dense=False),
        public=tuple(other for other in family if other != name),
        maze=MAZES[name],
    )


_CHEETAH: Mapping[str, Any] = {
    "environment": "HalfCheetah-v5",
    "options": {"training_steps": 20_000, "reference_episodes": 20},
}
"""A fiftieth of the recipe's training, for want of CPU time."""

TASKS: Mapping[str, Task] = {
    **{name: _maze(name, family) for family in FAMILIES for name in family},
    "halfcheetah": Task(
        dataset="mujoco/halfcheetah-medium-replay-v0",
        recipe="halfcheetah-medium-replay",
        public=("halfcheetah-expert",),
        **_CHEETAH,
    ),
    "halfcheetah-expert": Task(
        dataset="mujoco/halfcheetah-medium-expert-v0",
        recipe="halfcheetah-medium-expert",
        public=(),
        **_CHEETAH,
    ),
}
"""By the name that cells have: transitions of HalfCheetah are rows of 41 numbers."""
