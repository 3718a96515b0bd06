"""The recipes that ``privrl collect`` knows, and the one way to run them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import gymnasium

from distributed_privrl.collection.experts import EXPERT_RECIPES, ExpertRecipe
from distributed_privrl.collection.gym_recipes import GYM_RECIPES
from distributed_privrl.collection.maze2d import Maze2DRecipe, RandomMaze2DRecipe
from distributed_privrl.collection.replay import REPLAY_RECIPES, ReplayRecipe, TrainedReplay
from distributed_privrl.collection.tabular import TABULAR_RECIPES
from distributed_privrl.collection.trained_experts import TrainedExperts
from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.config import StrictModel, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import COLLECTION_KEY, PUBLIC_KEY, DatasetInfo, Layout
from distributed_privrl.data.spaces import supported_space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.mazes import MAZES


class Recipe(Protocol):
    """What makes the trajectories of a dataset."""

    @property
    def name(self) -> str:
        """What a user calls it."""
        ...

    @property
    def options(self) -> type[StrictModel]:
        """The options that it takes."""
        ...

    @property
    def unit_column(self) -> str | None:
        """What the trajectories' unit ids are called; None: they are not kept."""
        ...

    def layout(self, options: Any) -> Layout:
        """Return how the trajectories are stored; see `DatasetStore.write_trajectories`."""
        ...

    def environment(self, options: Any) -> str:
        """Return the Gymnasium id of the environment."""
        ...

    def total_steps(self, steps: int | None, options: Any) -> int:
        """Return how many steps to make, at most, where ``steps`` are asked for (None: default)."""
        ...

    def references(self, options: Any) -> Mapping[str, Any]:
        """Return further metadata: what policies earn that others are compared with."""
        ...

    def trajectories(self, *, steps: int, options: Any, streams: Streams) -> Iterator[Trajectories]:
        """Return an iterator over the trajectories, in chunks that fit into memory."""
        ...


MAZE2D_STEPS: Mapping[str, int] = {
    "open": 1_000_000,
    "umaze": 1_000_000,
    "medium": 2_000_000,
    "large": 4_000_000,
    "eval-umaze": 1_000_000,
    "eval-medium": 2_000_000,
    "eval-large": 4_000_000,
}
"""Default steps of each maze: the sizes of D4RL's datasets, which PrivORL's table VIII uses."""

_MAZE2D_RECIPES = (
    Maze2DRecipe(maze=maze, dense=dense, default_steps=MAZE2D_STEPS[maze.name])
    for maze in MAZES.values()
    for dense in (False, True)
)

_ALL: tuple[Recipe, ...] = (
    *_MAZE2D_RECIPES,
    RandomMaze2DRecipe(),
    *TABULAR_RECIPES,
    *GYM_RECIPES,
    *REPLAY_RECIPES,
    *EXPERT_RECIPES,
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def collect(
    recipe: str,
    *,
    dataset: str,
    store: DatasetStore,
    steps: int | None = None,
    seed: int = 0,
    options: Mapping[str, object] | None = None,
    public: bool = False,
    progress: Callable[[int, int], None] | None = None,
    training_progress: Callable[[int, int], None] | None = None,
) -> DatasetInfo:
    """Make a dataset; on an error or an interrupt nothing of it remains.

    Where a recipe trains policies first, these do remain, and the next call goes on with them.

    Args:
        recipe: name of a recipe.
        dataset: id of the dataset to write.
        store: where it is written.
        steps: number of steps; None: the recipe's default.
        seed: public seed; the same seed gives the same data.
        options: the recipe's options by name.
        public: declare that the rows are nobody's secret.
        progress: called with the steps made and the steps in total, after each chunk. Where
            trajectories may end early the total is the most that there can be, and the last call
            has the steps made twice.
        training_progress: called with gradient steps taken and in total, or experts trained and in
            total, where policies are trained first.

    Returns:
        What the store says about the dataset. Its metadata holds ``collection`` (recipe, seed,
        steps, options), where ``steps`` is that total, and what policies earn:
        ``reference_returns`` (random, planner, episodes) for mazes, ``reference_values`` (uniform,
        behaviour, optimal, horizon) for finite problems, ``reference_returns`` (random, expert,
        snapshots, episodes, and behaviour, the data's mean return) for replays; for experts
        ``reference_returns`` and ``evaluation_returns`` (random, best, episodes, steps), and
        ``experts``, what `agents.experts.ExpertFacts` holds and more.

    Raises:
        ConfigError: an unknown recipe or option, a wrong value, or the dataset exists.
        MissingExtraError: the environment's packages are not installed.
        StorageError: the dataset cannot be written.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"recipe {recipe!r} is unknown (known: {', '.join(RECIPES)})")
    check_dataset_id("dataset", dataset)
    if steps is not None and steps < 1:
        raise ConfigError(f"steps must be at least 1, got {steps}")
    chosen = RECIPES[recipe]
    settings: Any = validate(chosen.options, options or {}, source=f"options of {recipe}")
    if isinstance(chosen, RandomMaze2DRecipe):
        settings = chosen.seeded(settings, seed=seed)
    total = chosen.total_steps(steps, settings)
    environment_id = chosen.environment(settings)
    environment = gymnasium.make(environment_id)
    store.check_new(dataset)
    training: contextlib.AbstractContextManager[Recipe | TrainedReplay | TrainedExperts] = (
        chosen.trained(settings, seed=seed, root=store.root, progress=training_progress)
        if isinstance(chosen, ReplayRecipe | ExpertRecipe)
        else contextlib.nullcontext(chosen)
    )
    with training as source:
        chunks = source.trajectories(steps=total, options=settings, streams=Streams(seed))
        store.write_trajectories(
            dataset,
            _reporting(chunks, total, progress),
            observation_space=supported_space("observation space", environment.observation_space),
            action_space=supported_space("action space", environment.action_space),
            layout=chosen.layout(settings),
            environment=environment_id,
            unit_column=chosen.unit_column,
            metadata={
                COLLECTION_KEY: {
                    "recipe": recipe,
                    "seed": seed,
                    "steps": total,
                    "options": settings.model_dump(mode="json"),
                },
                **source.references(settings),
                **({PUBLIC_KEY: True} if public else {}),
            },
            complete=partial(source.complete, options=settings, public=public)
            if isinstance(source, TrainedReplay | TrainedExperts)
            else None,
        )
    return store.info(dataset)


def _reporting(
    chunks: Iterator[Trajectories], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Trajectories]:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk.rewards)
        if progress is not None:
            progress(done, total)
    if progress is not None and done < total:
        progress(done, done)
