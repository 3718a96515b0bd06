"""The utility tables of both methods: the settings of each scale, the rows beside ours."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.utility_cells import Scale, Table
from benchmarks.utility_tasks import TABLE_MAZES

PAPER_N: Mapping[tuple[str, float | None], float] = {
    ("umaze", 10.0): 0.99,
    ("umaze", 1.0): 0.85,
    ("medium", 10.0): 0.97,
    ("medium", 1.0): 0.79,
    ("large", 10.0): 0.94,
    ("large", 1.0): 0.59,
}
"""Share of the real-data return that IQL reaches in PrivORL, table I."""

PAPER_MUJOCO: Mapping[tuple[str, float | None], float] = {
    ("halfcheetah", 10.0): 0.76,
    ("halfcheetah", 1.0): 0.52,
}
"""The same of halfcheetah-medium-replay; there rows of walker2d are public, too."""

PAPER_J: Mapping[tuple[str, float | None], float] = {
    ("umaze", 10.0): 0.70,
    ("umaze", 1.0): 0.59,
    ("medium", 10.0): 0.71,
    ("medium", 1.0): 0.25,
    ("large", 10.0): 0.44,
    ("large", 1.0): 0.12,
}
"""The same of PrivORL-j, table II."""

PAPER_EDAC_N: Mapping[tuple[str, float], float] = {
    ("umaze", 10.0): 69.1 / 70.8,
    ("umaze", 1.0): 63.2 / 70.8,
    ("medium", 10.0): 45.6 / 73.0,
    ("medium", 1.0): 32.0 / 73.0,
    ("large", 10.0): 80.6 / 89.9,
    ("large", 1.0): 62.4 / 89.9,
    ("halfcheetah", 10.0): 48.8 / 60.8,
    ("halfcheetah", 1.0): 38.7 / 60.8,
}
"""Share of the real-data return that EDAC reaches in PrivORL, table I."""

PAPER_EDAC_J: Mapping[tuple[str, float], float] = {
    ("umaze", 10.0): 52.2 / 70.8,
    ("umaze", 1.0): 45.5 / 70.8,
    ("medium", 10.0): 35.0 / 73.0,
    ("medium", 1.0): 31.5 / 73.0,
    ("large", 10.0): 47.5 / 89.9,
    ("large", 1.0): 20.5 / 89.9,
}
"""The same of PrivORL-j, table II."""

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "privorl_n": {"method": "privorl_n"},
    "no pre-training": {"training": {"pretraining": {"steps": 0}}},
    "no curiosity": {"training": {"pretraining": {"curiosity_rate": 0.0}}},
    "curiosity": {"training": {"pretraining": {"curiosity_rate": 0.3}}},
    "curiosity in fine-tuning": {"training": {"curiosity_rate": 0.3}},
    "pre-training only": {"training": {"rounds": 1}},
    "rdp": {"privacy": {"accountant": "rdp"}},
    "no frequencies": {"model": {"column_frequencies": 0}},
    "no floor": {"training": {"sampling": {"floor": 0.0}}},
    "public physics": {"model": {"public_parts": ["next_observation"]}},
    "bins 32": {"model": {"bins": 32}},
    "hidden 64": {"model": {"hidden": [64, 64]}},
}
"""Other rows of the transitions' table; with another method its own overrides apply."""

HORIZONS = (8, 16, 32, 64)

VARIANTS_J: Mapping[str, Mapping[str, Any]] = {
    "privorl_j_unet": {"method": "privorl_j_unet"},
    "privorl_j": {"method": "privorl_j"},
    "privorl_ar": {"method": "privorl_ar"},
    "privorl_n": {"method": "privorl_n"},
    "pre-training only": {"training": {"rounds": 1}},
    **{
        f"horizon {horizon}": {
            "method": "privorl_j",
            "model": {"horizon": horizon},
            "training": {
                "expected_batch_size": 512,
                "all_fragments": True,
                "optimiser": {"learning_rate": 5e-4},
                "pretraining": {"batch_size": 1024 // horizon},
            },
        }
        for horizon in HORIZONS
    },
}
"""Other rows of the trajectories' table; with another method its own overrides apply.

Horizons see as many steps in a public batch as each other, and in their rounds every fragment.
"""


FAST_IQL = {
    "hidden": [128, 128],
    "learning_rate": 2e-3,
    "polyak": 0.05,
    "discount": 0.98,
    "beta": 10.0,
    "expectile": 0.9,
}
_FAST_TD3BC = {"hidden": [128, 128], "learning_rate": 1e-3, "polyak": 0.05, "discount": 0.97}

_N_CPU: Mapping[str, Any] = {
    "model": {"width": 256, "depth": 5, "column_frequencies": 4},
    "training": {
        "rounds": 2000,
        "expected_batch_size": 4096,
        "clip_norm": 1.0,
        "block_rounds": 50,
        "spare": 50,
        "optimiser": {"learning_rate": 1e-3, "schedule": "cosine"},
        "pretraining": {"steps": 5000, "batch_size": 1024, "curiosity_rate": 0.0},
        "sampling": {"steps": 32, "churn": 0.0},
    },
}
_AR_CPU: Mapping[str, Any] = {
    "model": {"bins": 128, "hidden": [128, 128], "column_frequencies": 6},
    "training": {
        "rounds": 1000,
        "expected_batch_size": 4096,
        "clip_norm": 1.0,
        "block_rounds": 50,
        "spare": 50,
        "optimiser": {"learning_rate": 3e-3, "schedule": "cosine"},
        "pretraining": {
            "steps": 4000,
            "batch_size": 1024,
            "curiosity_rate": 0.0,
            "optimiser": {"learning_rate": 2e-3},
        },
    },
}
_AR_QUICK = {
    "model": {"bins": 16, "hidden": [16]},
    "training": {
        "rounds": 20,
        "block_rounds": 10,
        "expected_batch_size": 256,
        "pretraining": {"steps": 20, "batch_size": 64, "curiosity_rate": 0.0},
    },
}
_N_QUICK = {
    "model": {"width": 32, "depth": 1},
    "training": {
        "rounds": 20,
        "block_rounds": 10,
        "expected_batch_size": 256,
        "pretraining": {"steps": 20, "batch_size": 64, "curiosity_rate": 0.0},
        "sampling": {"steps": 4, "churn": 0.0},
    },
}
_AR_PAPER = {
    "model": {"bins": 256, "hidden": [512, 512]},
    "training": {
        "rounds": 10_000,
        "expected_batch_size": 4096,
        "optimiser": {"learning_rate": 3e-4},
        "pretraining": {"steps": 50_000, "curiosity_rate": 0.0},
    },
    "runtime": {"gpus_per_worker": 1},
}
_N_PAPER = {
    "model": {"width": 1024, "depth": 6},
    "training": {
        "rounds": 10_000,
        "expected_batch_size": 4096,
        "optimiser": {"learning_rate": 3e-4},
        "pretraining": {"steps": 50_000, "curiosity_rate": 0.3},
        "sampling": {"steps": 128},
    },
    "runtime": {"gpus_per_worker": 1},
}

CPU = Scale(
    steps=1_000_000,
    synthetic=200_000,
    delta=1e-7,
    overrides={"privorl_ar": _AR_CPU, "privorl_n": _N_CPU},
    agents={"iql": FAST_IQL, "td3bc": _FAST_TD3BC},
    agent_steps=10_000,
    episodes=20,
)
QUICK = replace(
    CPU,
    steps=4000,
    synthetic=2000,
    delta=1e-5,
    overrides={"privorl_ar": _AR_QUICK, "privorl_n": _N_QUICK},
    agent_steps=4,
    episodes=1,
    seeds=2,
)
PAPER_SCALE = replace(
    CPU,
    synthetic=1_000_000,
    overrides={"privorl_ar": _AR_PAPER, "privorl_n": _N_PAPER},
    agents={"iql": {}, "td3bc": {}},
    agent_steps=500_000,
    episodes=100,
    seeds=5,
)

_EPISODE_STEPS = 64
_J_TRAINING_CPU: Mapping[str, Any] = {
    "rounds": 100,
    "expected_batch_size": 4096,
    "max_fragments_per_unit": 8,
    "all_fragments": False,
    "clip_norm": 1.0,
    "block_rounds": 10,
    "spare": 10,
    "optimiser": {"learning_rate": 3e-3, "schedule": "cosine", "ema_decay": 0.95},
    "pretraining": {"steps": 6000, "batch_size": 64, "curiosity_rate": 0.0},
    "sampling": {"steps": 20},
}
_AR_J_CPU: Mapping[str, Any] = {
    "model": {
        "bins": 64,
        "hidden": [64, 64],
        "column_frequencies": 6,
        "horizon": 32,
        "public_parts": ["next_observation"],  # the physics of all mazes
    },
    "training": {
        "rounds": 200,
        "expected_batch_size": 4096,
        "max_fragments_per_unit": 8,
        "all_fragments": False,
        "clip_norm": 1.0,
        "block_rounds": 10,
        "spare": 10,
        "optimiser": {"learning_rate": 1e-2, "schedule": "cosine", "ema_decay": 0.95},
        "pretraining": {
            "steps": 10_000,
            "batch_size": 64,
            "curiosity_rate": 0.0,
            "optimiser": {"learning_rate": 3e-3},
        },
        "sampling": {"support": {"epsilon": 0.1, "columns": [0, 1]}},
    },
}
_J_TRAINING_QUICK: Mapping[str, Any] = {
    "rounds": 4,
    "expected_batch_size": 12,
    "max_fragments_per_unit": 8,
    "pretraining": {"steps": 4, "batch_size": 16, "curiosity_rate": 0.0},
    "sampling": {"steps": 2},
}
CPU_J = replace(
    CPU,
    steps=60_000 * _EPISODE_STEPS,
    episode_steps=_EPISODE_STEPS,
    delta=1e-6,
    overrides={
        "privorl_ar_j": _AR_J_CPU,
        "privorl_j": {
            "model": {"width": 64, "depth": 2, "horizon": 16},
            "training": {
                **_J_TRAINING_CPU,
                "pretraining": {**_J_TRAINING_CPU["pretraining"], "steps": 3000},
            },
        },
        "privorl_j_unet": {
            "model": {"width": 32, "depth": 3, "horizon": 32, "column_frequencies": 4},
            "training": _J_TRAINING_CPU,
        },
        # A transition is one of 3.84 million.
        "privorl_ar": {**_AR_CPU, "privacy": {"delta": 2e-8}},
        "privorl_n": {**_N_CPU, "privacy": {"delta": 2e-8}},
    },
)
QUICK_J = replace(
    QUICK,
    steps=60 * _EPISODE_STEPS,
    synthetic=20 * _EPISODE_STEPS,
    episode_steps=_EPISODE_STEPS,
    overrides={
        "privorl_ar_j": {
            "model": {"bins": 16, "hidden": [16], "horizon": 32},
            "training": {**_J_TRAINING_QUICK, "sampling": {}},
        },
        "privorl_j": {
            "model": {"width": 8, "depth": 1, "heads": 2, "horizon": 32},
            "training": _J_TRAINING_QUICK,
        },
        "privorl_j_unet": {
            "model": {"width": 4, "depth": 2, "horizon": 32},
            "training": _J_TRAINING_QUICK,
        },
        "privorl_ar": _AR_QUICK,
        "privorl_n": _N_QUICK,
    },
)

# Models of 41 variables: what public rows of HalfCheetah asked for (docs/utility.md).
CPU_MUJOCO = replace(
    CPU,
    steps=300_000,
    synthetic=100_000,
    overrides={
        "privorl_ar": {
            "model": {"bins": 64, "hidden": [128, 128], "column_frequencies": 2},
            "training": {
                **_AR_CPU["training"],
                "rounds": 500,
                "pretraining": {
                    **_AR_CPU["training"]["pretraining"],
                    "steps": 6000,
                    "optimiser": {"learning_rate": 3e-3},
                },
            },
        },
        "privorl_n": {
            **_N_CPU,
            "training": {**_N_CPU["training"], "rounds": 1000, "expected_batch_size": 2048},
        },
    },
    agents={
        "iql": {"hidden": [128, 128], "learning_rate": 2e-3, "polyak": 0.05},
        "td3bc": {"hidden": [128, 128], "learning_rate": 1e-3, "polyak": 0.05},
    },
    episodes=5,
)


MAZE_TABLES: Mapping[str, Table] = {
    "privorl_n": Table(
        name="utility_maze2d",
        method="privorl_ar",
        scales={"cpu": CPU, "quick": QUICK, "paper": PAPER_SCALE},
        variants=ABLATIONS,
        paper=PAPER_N,
        mazes=TABLE_MAZES,
        epsilons=("1", "10", "0.3", "none"),
    ),
    "privorl_j": Table(
        name="utility_maze2d_j",
        method="privorl_ar_j",
        scales={"cpu": CPU_J, "quick": QUICK_J},
        variants=VARIANTS_J,
        paper=PAPER_J,
        mazes=TABLE_MAZES[:2],
        epsilons=("10", "1"),
        rows=("privorl_j", "privorl_j_unet", "privorl_ar", "privorl_n"),
        rows_epsilon="10",
    ),
}

MUJOCO_TABLES: Mapping[str, Table] = {
    "privorl_n": Table(
        name="utility_mujoco",
        method="privorl_ar",
        scales={"cpu": CPU_MUJOCO, "quick": QUICK},
        variants=ABLATIONS,
        paper=PAPER_MUJOCO,
        mazes=("halfcheetah",),
        epsilons=("10", "1"),
    ),
}
