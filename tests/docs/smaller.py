"""What makes the commands of pages and ready sweeps quick."""

from collections.abc import Sequence
from pathlib import Path

QUICK_PRICE = "privacy.accountant=rdp"
"""Spares a second of every calibration; what an epsilon is, other tests check."""
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
    QUICK_PRICE,
)
FEW_COUNTS = (
    QUICK_PRICE,
    "training.tables=1",
    "training.steps=1",
    "model.draws=100",
    "output.size=50",
)
"""Of the tables of the tutorial and of the clinic."""
FEW_TRIALS = (
    "search={privacy.epsilon: {grid: [1, 10]}}",
    QUICK_PRICE,
    "data.units=60",
    "model.horizon=8",
    "training.rounds=2",
    "training.expected_batch_size=8",
    "training.pretraining.steps=2",
    "output.size=8",
    "evaluation.steps=2",
    "evaluation.episodes=1",
)
"""Of the ready sweep."""
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
    files = {Path(word).name for word in rest}
    if verb == "evaluate":
        return AGENTS
    if verb in ("run", "plan") and "privorl_n_maze2d.yaml" in files:
        return settings(*TINY)
    if verb in ("run", "plan") and "ward.yaml" in files:
        return settings("data.units=20")
    if verb == "run" and files & {"clinic.yaml", "fleet.yaml"}:
        return settings(*FEW_COUNTS, "training.tables=2")  # the clinic names two
    if verb in ("rehearse", "run") and "health.yaml" in files:
        few = settings(*FEW_COUNTS)
        return few if verb == "run" else [*few, *settings("data.units=200")]
    if verb == "run" and any(name.startswith("epsilon-") for name in files):
        return settings("evaluation.study_units=[]")
    if verb == "run" and "maze.yaml" in files:
        return settings(QUICK_PRICE)
    if verb == "run" and "run.yaml" in files:
        return ("--anyway",)  # twelve people stand for the page's thousands
    if verb == "sweep":
        return settings(*FEW_TRIALS)
    if verb == "collect":
        replayed = rest[0].endswith("-replay")
        counted = any(word.startswith("trajectories=") for word in rest)
        if counted and not replayed and rest[0] not in OF_RECIPES:
            return settings("trajectories=60")
        policies = settings(*POLICIES) if replayed else FEW_STEPS
        return OF_RECIPES.get(rest[0], policies)
    return ()
