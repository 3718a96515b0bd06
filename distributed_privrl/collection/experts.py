"""Recipes of experts: many policies, each trained in another setting, act in the default one.

Each expert is a unit. Its policy is kept beside the rows, for methods whose unit is an expert.

Reference: Expert-level DP, section 6 and appendix B.1.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed_privrl.collection.experts_options import ExpertOptions
from distributed_privrl.collection.trained_experts import TrainedExperts
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.classic_control import (
    ACROBOT,
    CARTPOLE,
    ClassicAcrobot,
    ClassicCartPole,
)
from distributed_privrl.environments.hiv import HIV, HivTreatment
from distributed_privrl.environments.lunar_lander import LUNAR_LANDER, LunarLanders

if TYPE_CHECKING:
    from distributed_privrl.collection.experts_training import Trainer

_SIMULATORS: Mapping[str, Callable[[], Any]] = {
    CARTPOLE: ClassicCartPole,
    ACROBOT: ClassicAcrobot,
    HIV: HivTreatment,
    LUNAR_LANDER: LunarLanders,
}


@dataclass(frozen=True, kw_only=True)
class ExpertRecipe:
    """A recipe of one environment; see `distributed_privrl.collection.recipes.Recipe`.

    Args:
        name: name of the recipe.
        problem: Gymnasium id.
        max_length: steps of a trajectory at most; in training too, unless it says otherwise.
        evaluation_steps: steps at most where policies learned from the data are judged.
        algorithm: proximal policy optimisation of each expert, or of one policy that is told of
            each expert's setting; or fitted Q-iteration.
        training: its hyper-parameters.
    """

    name: str
    problem: str
    max_length: int
    evaluation_steps: int
    algorithm: Literal["ppo", "shared_ppo", "fitted_q"]
    training: Mapping[str, Any]
    options: type[ExpertOptions] = ExpertOptions
    unit_column: str = "expert"

    def layout(self, options: ExpertOptions) -> Layout:
        """Return ``packed``: trajectories may be many and short."""
        return "packed"

    def environment(self, options: ExpertOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return self.problem

    def total_steps(self, steps: int | None, options: ExpertOptions) -> int:
        """Return how many steps there can be: trajectories that end early have fewer.

        Raises:
            ConfigError: a number of steps is asked for.
        """
        if steps is not None:
            raise ConfigError(
                f"steps={steps} cannot be asked of {self.name}, whose trajectories end when they"
                " end: give --experts and --trajectories"
            )
        longest = options.max_length or self.max_length
        return options.experts * options.trajectories * longest

    def references(self, options: ExpertOptions) -> Mapping[str, Any]:
        """Return nothing: what experts earn is known when they have acted."""
        return {}

    def trajectories(
        self, *, steps: int, options: ExpertOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Refuse: the experts are trained first.

        Raises:
            ConfigError: always; see `trained`.
        """
        raise ConfigError(f"recipe {self.name} has no experts yet: use ExpertRecipe.trained")

    @contextlib.contextmanager
    def trained(
        self,
        options: ExpertOptions,
        *,
        seed: int,
        root: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[TrainedExperts]:
        """Yield the recipe with its experts, trained now or as far as an earlier call came.

        They lie in a hidden folder of the store until the block ends without an error.

        Args:
            options: how many experts and trajectories.
            seed: public seed.
            root: folder of the dataset store.
            progress: called with experts done and in total.

        Raises:
            ConfigError: a wrong hyper-parameter, or another process trains these experts.
            StorageError: they cannot be written.
        """
        from distributed_privrl.collection import experts_training as training
        from distributed_privrl.collection.experts_grids import GRIDS
        from distributed_privrl.collection.experts_shared import SharedPpoTrainer
        from distributed_privrl.collection.replay_training import policies_folder

        longest = options.max_length or self.max_length
        trainer = self._trainer(options, longest)
        plan = training.ExpertPlan(
            environment=self.problem,
            experts=options.experts,
            trajectories=options.trajectories,
            max_length=longest,
            minimum_probability=options.minimum_probability,
            training={"algorithm": self.algorithm, **trainer.described()},
            seed=seed,
        )
        settings = GRIDS[self.problem].settings(options.experts, plan.streams)
        simulator = _SIMULATORS[self.problem]()
        with policies_folder(root, plan, keep=options.keep_policies) as folder:
            if isinstance(trainer, SharedPpoTrainer):
                trainer.prepare(settings, plan.streams.child("shared"), folder)
            training.make_blocks(plan, trainer, simulator, settings, folder, progress=progress)
            yield TrainedExperts(
                plan=plan,
                folder=folder,
                simulator=simulator,
                evaluation_steps=self.evaluation_steps,
            )

    def _trainer(self, options: ExpertOptions, max_length: int) -> "Trainer":
        from distributed_privrl.collection.experts_fitted_q import FittedQConfig, FittedQTrainer
        from distributed_privrl.collection.experts_grids import GRIDS
        from distributed_privrl.collection.experts_ppo import PpoConfig, PpoTrainer
        from distributed_privrl.collection.experts_shared import SharedPpoConfig, SharedPpoTrainer

        forms: dict[str, tuple[type[Any], Callable[..., Trainer]]] = {
            "ppo": (PpoConfig, PpoTrainer),
            "shared_ppo": (SharedPpoConfig, partial(SharedPpoTrainer, grid=GRIDS[self.problem])),
            "fitted_q": (FittedQConfig, FittedQTrainer),
        }
        form, trainer = forms[self.algorithm]
        given = {"max_steps": max_length, **self.training, **options.training}
        try:
            config = form(**given)
        except TypeError as error:
            known = ", ".join(form.__dataclass_fields__)
            raise ConfigError(
                f"training={options.training!r} has an unknown key (known: {known})"
            ) from error
        return trainer(config, _SIMULATORS[self.problem]())


EXPERT_RECIPES = (
    ExpertRecipe(
        name="experts-cartpole",
        problem=CARTPOLE,
        max_length=200,
        evaluation_steps=1000,
        algorithm="ppo",
        training={"updates": 60, "least_updates": 4, "scale": (1.0, 1.0, 0.1, 1.0)},
    ),
    ExpertRecipe(
        name="experts-acrobot",
        problem=ACROBOT,
        max_length=200,
        evaluation_steps=200,
        algorithm="ppo",
        training={
            "max_steps": 500,
            "updates": 60,
            "least_updates": 10,
            "discount": 0.99,
            "reward_scale": 0.05,
            "entropy_weight": 0.01,
            "scale": (1.0, 1.0, 1.0, 1.0, 2.5, 5.0),
        },
    ),
    ExpertRecipe(
        name="experts-lunarlander",
        problem=LUNAR_LANDER,
        max_length=200,
        evaluation_steps=1000,
        algorithm="shared_ppo",
        training={
            "max_steps": 500,
            "hidden": (64, 64),
            "environments": 32,
            "rollout_steps": 128,
            "updates": 300,
            "minibatches": 8,
            "learning_rate": 1e-3,
            "discount": 0.995,
            "trace_decay": 0.95,
            "entropy_weight": 0.003,
            "scale": (1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0),
        },
    ),
    ExpertRecipe(
        name="experts-hiv",
        problem=HIV,
        max_length=50,
        evaluation_steps=50,
        algorithm="fitted_q",
        training={},
    ),
)
