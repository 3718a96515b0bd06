"""Short walks to either side, of varying length: a world whose ends can be learned in seconds."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box
from torch import nn

from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.marginals.config import MarginalsJConfig
from distributed_privrl.methods.privorl.config import (
    DpTransformerConfig,
    PrivorlArJConfig,
    PrivorlJConfig,
    PrivorlJUNetConfig,
    TrajectoriesConfig,
)
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.model_config import TransformerConfig, UNetConfig
from distributed_privrl.methods.privorl.pretraining import Pretrainer, PretrainerSpec
from distributed_privrl.methods.privorl.step_model import StepSynthesizer
from distributed_privrl.methods.privorl.token_model import TokenSynthesizer
from distributed_privrl.methods.privorl.trajectories import FragmentRows
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

SENSITIVE, PUBLIC = "test/walks-v0", "test/public-walks-v0"
SPACES: dict[str, Any] = {
    "observation_space": Box(-2.0, 2.0, (2,), np.float32),
    "action_space": Box(-1.0, 1.0, (1,), np.float32),
}


def walks(count: int, seed: int, *, limit: int = 24) -> Trajectories:
    """Return walks from near 0 to beyond -1 or 1, at a speed that the observation shows.

    Every other one is stopped at ``limit`` steps if it is slow.
    """
    generator = np.random.default_rng(seed)
    observations, actions, lengths, terminated = [], [], [], []
    for _ in range(count):
        place, speed = generator.uniform(-0.5, 0.5), generator.uniform(0.05, 0.3)
        side = generator.choice([-1.0, 1.0])
        length = min(limit, int(np.ceil((1 - side * place) / speed)))
        places = place + side * speed * np.arange(length + 1)
        observations.append(np.stack([places, np.full(length + 1, speed)], axis=1))
        actions.append(np.full((length, 1), side))
        lengths.append(length)
        ends = np.zeros(length, dtype=bool)
        ends[-1] = abs(places[-1]) >= 1
        terminated.append(ends)
    ends = np.concatenate(terminated)
    offsets = offsets_of(lengths)
    truncated = np.zeros(len(ends), dtype=bool)
    truncated[offsets[1:] - 1] = ~ends[offsets[1:] - 1]
    return Trajectories(
        observations=np.concatenate(observations),
        actions=np.concatenate(actions),
        rewards=ends.astype(np.float32),
        terminated=ends,
        truncated=truncated,
        offsets=offsets,
        unit_ids=np.arange(count, dtype=np.uint64),
    )


def wanderings(count: int, seed: int, *, longest: int = 20) -> Trajectories:
    """Return trajectories of 3 or more steps in which nothing can be foreseen, only remembered."""
    source = np.random.default_rng(seed)
    lengths = source.integers(3, longest + 1, count)
    steps = int(lengths.sum())
    return Trajectories(
        observations=source.uniform(-2, 2, (steps + count, 2)),
        actions=source.uniform(-1, 1, (steps, 1)),
        rewards=source.normal(size=steps),
        terminated=np.zeros(steps, bool),
        truncated=np.isin(np.arange(steps), np.cumsum(lengths) - 1),
        offsets=offsets_of(lengths),
        unit_ids=np.arange(count, dtype=np.uint64),
    )


def walk_store(
    root: Path, *, sensitive: int = 200, public: int = 200, layout: Layout = "episodes"
) -> DatasetStore:
    """Write both sets of walks into a new store."""
    store = DatasetStore(root)
    for dataset, count, seed in ((SENSITIVE, sensitive, 1), (PUBLIC, public, 2)):
        store.write_trajectories(dataset, walks(count, seed), layout=layout, **SPACES)
    return store


def config_values(**changes: Any) -> dict[str, Any]:
    """Return a run on the walks; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": "privorl_j",
        "data": {
            "sensitive": SENSITIVE,
            "public": [PUBLIC],
            "unit": "trajectory",
            "units": 200,
            "max_length": 24,
        },
        "privacy": {"epsilon": 8.0, "delta": 1e-4},
        "model": {"width": 16, "depth": 1, "heads": 2, "horizon": 8},
        "training": {
            "rounds": 4,
            "expected_batch_size": 20,
            "max_fragments_per_unit": 3,
            "pretraining": {"steps": 4, "batch_size": 16, "curiosity_sampler_steps": 2},
            "sampling": {"steps": 3, "chunk_trajectories": 8},
        },
        "output": {"dataset": "test/private-walks-v0", "size": 20},
        "runtime": {"workers": 2, "executor": "local"},
    }
    return changed(values, changes)


def config(**changes: Any) -> TrajectoriesConfig:
    """Return the run's configuration."""
    return parsed(config_values(**changes), PrivorlJConfig, PrivorlJUNetConfig)


def ar_config(**changes: Any) -> PrivorlArJConfig:
    """Return the configuration of the same run with the autoregressive model."""
    training = config_values()["training"] | {"sampling": {"chunk_trajectories": 8}}
    model = {"bins": 8, "hidden": [8], "column_frequencies": 1, "horizon": 8}
    own = {"method": "privorl_ar_j", "model": model, "training": training}
    return parsed(config_values(**(own | changes)), PrivorlArJConfig)


def token_config(**changes: Any) -> DpTransformerConfig:
    """Return the configuration of the same run with the transformer of tokens."""
    training = config_values()["training"] | {"sampling": {"chunk_trajectories": 8}}
    model = {"bins": 8, "width": 8, "depth": 1, "heads": 2, "column_frequencies": 1, "horizon": 8}
    own = {"method": "dp_transformer", "model": model, "training": training}
    return parsed(config_values(**(own | changes)), DpTransformerConfig)


def synthesizer_of(settings: TrajectoriesConfig, store: DatasetStore) -> FragmentSynthesizer:
    """Return an untrained model of the walks' fragments."""
    assert isinstance(settings.model, TransformerConfig | UNetConfig)
    encoder = FragmentEncoder(public_encoder(settings, store), 8, time_limit=24)
    return FragmentSynthesizer(model=settings.model, encoder=encoder.to_json())


def trained(
    store: DatasetStore,
    synthesizer: FragmentSynthesizer | StepSynthesizer | TokenSynthesizer,
    settings: TrajectoriesConfig,
    folder: Path,
) -> nn.Module:
    """Pre-train on the public walks, to the last step, and return the averaged network."""
    pretraining = settings.training.pretraining
    trainer = Pretrainer(
        PretrainerSpec(
            run_id="run",
            root=str(store.root),
            public=(PUBLIC,),
            rows=FragmentRows(encoder=synthesizer.encoder, max_fragments_per_unit=3),
            synthesizer=synthesizer,
            config=pretraining,
            seed=0,
            checkpoint=folder / "pretrained.safetensors",
        )
    )
    trainer.advance(pretraining.steps)
    FlatParameters(trainer._network).load(trainer._optimiser.ema)
    return trainer._network


class Walks(World):
    """The walks, and runs of PrivORL-j on them, whose units are trajectories."""

    dataset = SENSITIVE
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 8.0, "delta": 1e-4, "unit": "trajectory"}
    config = staticmethod(config)


def marginals_config(**changes: Any) -> MarginalsJConfig:
    """Return a run of marginals on the walks; ``section__key=value`` changes it."""
    own: dict[str, Any] = {
        "method": "marginals_j",
        "model": {"bins": 6},
        "training": {"steps": 2, "tables": 2},
    }
    return parsed(changed(config_values() | own, changes), MarginalsJConfig)


def hybrid_values(bounds: str = "bounds.yaml", **changes: Any) -> dict[str, Any]:
    """Return a run of PrivORL-AR-j that pre-trains on marginals; ``section__key=value`` changes it.

    Like `shelf.values`: one lost step of marginals and one lost round can be told.
    """
    own: dict[str, Any] = {
        "method": "privorl_ar_j",
        "data": {
            "sensitive": SENSITIVE,
            "unit": "trajectory",
            "units": 200,
            "max_length": 24,
            "bounds": bounds,
        },
        "privacy": {"epsilon": 6.0, "delta": 1e-5},
        "model": {
            "bins": 8,
            "hidden": [8],
            "column_frequencies": 1,
            "horizon": 8,
            "reward_levels": [],
        },
        "training": {
            "rounds": 6,
            "expected_batch_size": 40,
            "max_fragments_per_unit": 3,
            "clip_norm": 0.5,
            "pretraining": {
                "steps": 6,
                "batch_size": 32,
                "from": "marginals",
                "marginals": {
                    "share": 0.6,
                    "trajectories": 150,
                    "table": {"bins": 4, "draws": 2000},
                    "selection": {"steps": 2, "tables": 2},
                },
            },
            "sampling": {"chunk_trajectories": 100},
        },
        "runtime": {"workers": 1, "executor": "local"},
    }
    return changed(config_values() | own, changes)


BOUNDS = """
observation: {low: [-2, 0], high: [2, 0.5]}
action: {low: -1, high: 1}
reward: {low: 0, high: 1, step: 1}
"""


class Strolls(World):
    """The walks, and runs of PrivORL-AR-j that pre-train on marginals of them, not on public ones.

    Args:
        folder: that holds all of it.
        master: a store to copy.
    """

    dataset = SENSITIVE
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 6.0, "delta": 1e-5, "unit": "trajectory"}

    def __init__(self, folder: Path, master: DatasetStore) -> None:
        super().__init__(folder, master, BOUNDS)

    def config(self, **changes: Any) -> PrivorlArJConfig:
        """Return the configuration of a run."""
        return parsed(hybrid_values(str(self.bounds), **changes), PrivorlArJConfig)
