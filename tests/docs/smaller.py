"""What makes the commands of pages and ready sweeps quick."""

from collections.abc import Sequence

TINY = (
    "data.units=300",
    "model.width=8",
    "model.depth=1",
    "training.rounds=2",
    "training.spare=1",
    "training.expected_batch_size=300",
    "training.pretraining.steps=2",
    "training.pretraining.batch_size=16",
    "training.sampling.steps=2",
    "output.size=40",
    "evaluation.trainers=[]",
)
FEW_STEPS = ("--steps", "300")
AGENTS = ("--steps", "10", "--episodes", "1", "--seeds", "1", "--executor", "local")
POLICIES = ("training_steps=2", "snapshots=1", "reference_episodes=1", "trajectories=4")
"""Of recipes that train policies first."""

OF_RECIPES = {
    "experts-cartpole": (
        *("--experts", "8", "--trajectories", "1"),
        *("-o", "training={updates: 1, least_updates: 1}", "-o", "reference_episodes=1"),
    ),
    "experts-hiv": (
        *("--experts", "1", "--trajectories", "1", "-o", "reference_episodes=1"),
        *("-o", "training={rounds: 1, least_rounds: 1, gradient_steps: 1}", "-o", "max_length=5"),
    ),
    "icu-sepsis": ("-o", "patients=20"),
    "linear-mdp": ("-o", "trajectories=20"),
}


def settings(*values: str) -> list[str]:
    """Return words of the command line that set keys."""
    return [word for value in values for word in ("-o", value)]


def smaller(words: Sequence[str]) -> Sequence[str]:
    """Return what makes a command of a page quick, by its words."""
    verb, *rest = words
    if verb == "evaluate":
        return AGENTS
    if verb in ("run", "plan") and "tune_configs/privorl_n_maze2d.yaml" in rest:
        return settings(*TINY)
    if verb in ("run", "plan") and "ward.yaml" in rest:
        return settings("data.units=20")
    if verb == "run" and "run.yaml" in rest:
        return ("--anyway",)  # twelve people stand for the page's thousands
    if verb == "sweep":
        return settings("search={privacy.epsilon: {grid: [1, 10]}}", "evaluation.steps=2")
    if verb == "collect":
        replayed = rest[0].endswith("-replay")
        counted = any(word.startswith("trajectories=") for word in rest)
        if counted and not replayed and rest[0] not in OF_RECIPES:
            return settings("trajectories=600")
        policies = settings(*POLICIES) if replayed else FEW_STEPS
        return OF_RECIPES.get(rest[0], policies)
    return ()
