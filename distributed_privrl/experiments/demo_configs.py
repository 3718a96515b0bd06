"""What each method's demo runs: its configuration, and the datasets that are collected first."""

from dataclasses import dataclass
from typing import Any

from distributed_privrl.experiments.demo_texts import DemoCorpus

SENSITIVE = "demo/maze2d-umaze-sensitive-v0"
PUBLIC = "demo/maze2d-medium-public-v0"
DEFAULT = "privorl_ar"
"""The closest to its data of those that a CPU trains in minutes."""
ENVIRONMENT = "privrl/Maze2D-umaze-dense-v0"
SENSITIVE_STEPS = 120_000
PUBLIC_STEPS = 60_000

EVALUATION: dict[str, Any] = {
    "trainers": ["iql"],
    "seeds": 2,
    "steps": 4000,
    "episodes": 10,
    # A short training: larger steps than the paper's, which needs a hundred times as many.
    "options": {
        "iql": {
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "polyak": 0.05,
            "discount": 0.98,
            "beta": 10.0,
        }
    },
}
"""The agents of the demos of rows."""

CONFIG: dict[str, Any] = {
    "method": "privorl_n",
    "seed": 0,
    "data": {
        "sensitive": SENSITIVE,
        "public": [PUBLIC],
        "unit": "transition",
        "units": SENSITIVE_STEPS,
        "environment": ENVIRONMENT,
    },
    "privacy": {"epsilon": 5.0, "delta": 5e-7},
    "model": {"width": 128, "depth": 3},
    "training": {
        "rounds": 400,
        "expected_batch_size": 2048,
        "optimiser": {"learning_rate": 1e-3, "ema_decay": 0.98},
        "pretraining": {"steps": 1000, "batch_size": 512},
        "sampling": {"steps": 32, "churn": 20.0},
    },
    "output": {"dataset": "demo/maze2d-umaze-private-v0", "size": 40_000},
    "evaluation": EVALUATION,
    "runtime": {"workers": 2},
}


EPISODE_STEPS = 100
AUTOREGRESSIVE: dict[str, Any] = {
    **CONFIG,
    "method": "privorl_ar",
    "model": {"bins": 64, "hidden": [64, 64]},
    "training": {
        "rounds": 300,
        "expected_batch_size": 2048,
        "optimiser": {"learning_rate": 3e-3, "ema_decay": 0.98},
        "pretraining": {"steps": 1000, "batch_size": 512},
    },
}

MARGINALS: dict[str, Any] = {
    **CONFIG,
    "method": "marginals",
    "data": {key: value for key, value in CONFIG["data"].items() if key != "public"},
    "model": {},
    "training": {},
}

TRAJECTORIES: dict[str, Any] = {
    "method": "privorl_j",
    "seed": 0,
    "data": {
        "sensitive": SENSITIVE,
        "public": [PUBLIC],
        "unit": "trajectory",
        "units": SENSITIVE_STEPS // EPISODE_STEPS,
        "max_length": EPISODE_STEPS,
        "environment": ENVIRONMENT,
    },
    "privacy": {"epsilon": 10.0, "delta": 1e-5},
    "model": {"horizon": 16, "width": 32, "depth": 2},
    "training": {
        "rounds": 30,
        "expected_batch_size": 60,
        "max_fragments_per_unit": 7,
        "optimiser": {"learning_rate": 5e-4, "ema_decay": 0.9},
        "pretraining": {"steps": 600, "batch_size": 32, "optimiser": {"ema_decay": 0.99}},
        "sampling": {"steps": 10},
    },
    "output": {"dataset": "demo/maze2d-umaze-private-v0", "size": 200},
    "runtime": {"workers": 2},
}

WARD = "demo/gridworld-sensitive-v0"
PANEL = "demo/linear-mdp-sensitive-v0"
PATIENTS = 100_000


def _value_iteration(method: str, **sections: Any) -> dict[str, Any]:
    """Return the configuration of a demo on the gridworld; ``sections`` win."""
    return {
        "method": method,
        "data": {
            "sensitive": WARD,
            "unit": "trajectory",
            "units": PATIENTS,
            "environment": "privrl/Gridworld-v0",
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "evaluation": {"study_units": [1000, 10_000, 100_000], "study_epsilons": [1.0], "seeds": 2},
        "runtime": {"workers": 2},
        **sections,
    }


APVI = _value_iteration("apvi", model={"horizon": 20, "reward": "known", "pooled": True})
VAPVI = _value_iteration(
    "vapvi",
    data={
        "sensitive": PANEL,
        "unit": "trajectory",
        "units": PATIENTS,
        "environment": "privrl/LinearMDP-a-v0",
    },
    model={"horizon": 20, "split": False, "early_termination": False},
)

SWINGS, PUBLIC_SWINGS = "demo/pendulum-sensitive-v0", "demo/pendulum-public-v0"
SWING_STEPS = 400_000
PRIMORL: dict[str, Any] = {
    "method": "primorl",
    "seed": 0,
    "data": {
        "sensitive": SWINGS,
        "public": [PUBLIC_SWINGS],  # for the bounds of the columns alone
        "unit": "trajectory",
        "units": SWING_STEPS // 200,
        "max_length": 200,
        "environment": "Pendulum-v1",
    },
    "privacy": {"epsilon": 10.0, "delta": 5e-5},
    "training": {"rounds": 150, "expected_batch_size": 200, "policy": {"steps": 4000}},
    "runtime": {"workers": 2},
}

CROWD, CROWD_SIZE, CROWD_STEPS = "demo/experts-v0", 500, 200
PUBLIC_POLES = "demo/cartpole-public-v0"
EXPERT: dict[str, Any] = {
    "method": "expert",
    "seed": 0,
    "data": {
        "sensitive": CROWD,
        "public": [PUBLIC_POLES],  # for the bounds of the columns alone
        "unit": "expert",
        "units": CROWD_SIZE,
        "environment": "CartPole-v1",
    },
    "privacy": {"epsilon": 10.0, "delta": 2e-4},
    "filter": {"share": 0.5, "draws": 5, "max_length": CROWD_STEPS},
    "model": {"hidden": [32]},
    "training": {"rounds": 200, "expected_batch_size": 125},
    "output": {"dataset": "demo/stable-prefixes-v0"},
    "evaluation": {"episodes": 20, "max_steps": 1000},
    "runtime": {"workers": 2},
}

MANUALS = DemoCorpus(
    dataset="demo/manuals-v0",
    private=("torch", "gymnasium", "opacus"),
    public=("numpy", "scipy", "scikit-learn"),
    documents=1000,
)
TEXTS: dict[str, Any] = {
    "method": "dprft",
    "seed": 0,
    "data": {"sensitive": MANUALS.dataset, "unit": "document", "units": MANUALS.documents},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "model": {
        "language": {
            "packages": list(MANUALS.public),
            "steps": 700,
            "vocabulary": 2048,
            "context": 128,
        },
        # Released once: so few documents leave nothing of votes for thousands of texts.
        "reward": "dp_mean_embedding",
    },
    "training": {"steps": 40, "prompts_per_step": 16, "samples": 4, "most_tokens": 48},
    "output": {"size": 200},
    "runtime": {"workers": 2},
}


@dataclass(frozen=True, kw_only=True)
class Demo:
    """One method's demo.

    Args:
        config: of the run.
        recipes: what is collected first: recipe, dataset, arguments of `collect`.
        corpus: of texts that is imported first; None: the method learns from no texts.
        quick: settings, as of ``-o``, that show the path in a fraction of the time; none: the demo
            has no quick form.
    """

    config: dict[str, Any]
    recipes: tuple[tuple[str, str, dict[str, Any]], ...]
    corpus: DemoCorpus | None = None
    quick: tuple[str, ...] = ()


_QUICK_AGENTS = ("evaluation.seeds=1", "evaluation.steps=400", "evaluation.episodes=2")
_QUICK_ROUNDS = ("training.rounds=30", "training.pretraining.steps=100", *_QUICK_AGENTS)
_RUNS = {"episode_steps": EPISODE_STEPS}
_MAZES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("maze2d-umaze-dense", SENSITIVE, {"steps": SENSITIVE_STEPS, "seed": 1}),
    ("maze2d-medium-dense", PUBLIC, {"steps": PUBLIC_STEPS, "seed": 2}),
)
DEMOS = {
    "privorl_n": Demo(config=CONFIG, recipes=_MAZES, quick=_QUICK_ROUNDS),
    "privorl_ar": Demo(config=AUTOREGRESSIVE, recipes=_MAZES, quick=_QUICK_ROUNDS),
    "marginals": Demo(config=MARGINALS, recipes=_MAZES[:1], quick=_QUICK_AGENTS),
    "pgm": Demo(config={**MARGINALS, "method": "pgm"}, recipes=_MAZES[:1], quick=_QUICK_AGENTS),
    "privsyn": Demo(
        config={**MARGINALS, "method": "privsyn"}, recipes=_MAZES[:1], quick=_QUICK_AGENTS
    ),
    "privorl_j": Demo(
        config=TRAJECTORIES,
        recipes=tuple(
            (recipe, dataset, {**given, "options": _RUNS}) for recipe, dataset, given in _MAZES
        ),
    ),
    "primorl": Demo(
        config=PRIMORL,
        recipes=(
            ("pendulum-mixed", SWINGS, {"steps": SWING_STEPS, "seed": 1}),
            ("pendulum-mixed", PUBLIC_SWINGS, {"steps": 20_000, "seed": 2}),
        ),
    ),
    "expert": Demo(
        config=EXPERT,
        recipes=(
            ("cartpole-mixed", PUBLIC_POLES, {"steps": 5000, "seed": 2}),
            (
                "experts-cartpole",
                CROWD,
                {
                    "seed": 1,
                    "options": {
                        "experts": CROWD_SIZE,
                        "trajectories": 8,
                        "training": {"updates": 20, "hidden": [16]},
                        "reference_episodes": 20,
                    },
                },
            ),
        ),
    ),
    "apvi": Demo(
        config=APVI,
        recipes=(("gridworld", WARD, {"seed": 1, "options": {"trajectories": PATIENTS}}),),
    ),
    "dprft": Demo(config=TEXTS, recipes=(), corpus=MANUALS),
    "vapvi": Demo(
        config=VAPVI,
        recipes=(("linear-mdp", PANEL, {"seed": 1, "options": {"trajectories": PATIENTS}}),),
    ),
}
