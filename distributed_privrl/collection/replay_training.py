"""Policies from bad to good: snapshots of one training of SAC, kept on disk as they are made."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.agents.sac import SacTrainer
from distributed_privrl.agents.settings import SacConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import remove_folder, storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.simulators import Simulator

CHECKPOINT_STEPS = 20_000
"""Gradient steps that an interruption may cost."""

_STATE = "training.safetensors"


class SimulatedEnvironment:
    """A simulator as `agents.sac.BatchEnvironment`: observations in, observations out.

    It remembers the states behind the observations that it showed last, so that a row that goes
    on does so from its true state; any other goes on from what its observation shows.

    Args:
        simulator: what moves.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.forget()

    def forget(self) -> None:
        """Go on from observations alone, as an environment does that was just made."""
        self._last: tuple[NDArray[np.float32], NDArray[np.float64]] | None = None

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """Return start observations ``(count, O)``."""
        key = int(torch.randint(2**63 - 1, (), generator=generator))
        source = np.random.Generator(np.random.Philox(key=key))
        return torch.from_numpy(self._simulator.observe(self._simulator.reset(count, source)))

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return next observations ``(M, O)``, rewards ``(M,)`` and terminated ``(M,)``."""
        seen = observations.numpy()
        states = self._simulator.states_of(seen)
        if self._last is not None and self._last[0].shape == seen.shape:
            same = (self._last[0] == seen).all(axis=1)
            states[same] = self._last[1][same]
        moved, rewards, terminated = self._simulator.step(states, actions.numpy())
        shown = self._simulator.observe(moved)
        self._last = shown.copy(), moved
        return (
            torch.from_numpy(shown),
            torch.from_numpy(rewards).float(),
            torch.from_numpy(terminated),
        )


@dataclass(frozen=True, kw_only=True)
class SnapshotPlan:
    """Which policies are trained; all of it is public.

    Args:
        environment: Gymnasium id.
        sac: hyper-parameters of `agents.settings.SacConfig`; the horizon is the environment's.
        training_steps: gradient steps in total (T).
        snapshots: number of policies that are kept (S).
        seed: public seed.
    """

    environment: str
    sac: Mapping[str, Any]
    training_steps: int
    snapshots: int
    seed: int

    def __post_init__(self) -> None:
        if self.snapshots**2 > self.training_steps:
            raise ConfigError(
                f"training_steps={self.training_steps} must be at least the square of"
                f" snapshots={self.snapshots}"
            )

    @property
    def schedule(self) -> tuple[int, ...]:
        """The gradient steps after which a policy is kept, ``(S,)``: T k^2 / S^2, k = 1 .. S.

        They lie closer in the beginning, where a policy changes faster.
        """
        squares = (k * k for k in range(1, self.snapshots + 1))
        return tuple(self.training_steps * square // self.snapshots**2 for square in squares)

    @property
    def folder_name(self) -> str:
        """A hidden folder's name that no other plan has, nor another version of the package."""
        return folder_name(self.environment, {**vars(self), "sac": dict(self.sac)})


class Plan(Protocol):
    """Which policies are trained."""

    @property
    def folder_name(self) -> str:
        """A hidden folder's name that no other plan has."""
        ...


def folder_name(environment: str, content: Mapping[str, Any]) -> str:
    """Return a hidden folder's name for policies that ``content``, JSON values, decides."""
    version = importlib.metadata.version("distributed_privrl")
    text = json.dumps({**content, "version": version}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f".policies-{environment.replace('/', '-')}-{digest[:12]}"


@contextlib.contextmanager
def policies_folder(root: Path, plan: Plan, *, keep: bool) -> Iterator[Path]:
    """Yield the folder where the plan's policies are kept, for this process alone.

    After an error or an interruption it stays, so that the next call goes on where this one was.

    Args:
        root: folder of the dataset store.
        plan: which policies.
        keep: leave it after success as well.

    Raises:
        ConfigError: another process trains the same policies.
        StorageError: it cannot be written.
    """
    folder = root / plan.folder_name
    with storage_errors(f"write {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process trains these policies in {folder}: wait for it, or choose"
                " another seed"
            ) from None
        yield folder
        if not keep:
            remove_folder(folder)


def train_snapshots(
    plan: SnapshotPlan,
    simulator: Simulator,
    folder: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Policy]:
    """Return the policies of the plan, trained or as far as they are there already.

    Each is written when it is made, and the training's state beside it; so an interrupted call
    is taken up by the next one, with the same result.

    Args:
        plan: which policies.
        simulator: of the plan's environment.
        folder: where they are kept.
        progress: called with gradient steps taken and in total.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    paths = {step: folder / f"policy-{step}.safetensors" for step in plan.schedule}
    stops = sorted({*range(CHECKPOINT_STEPS, plan.training_steps, CHECKPOINT_STEPS), *paths})
    environment = SimulatedEnvironment(simulator)
    state_path = folder / _STATE
    trainer = _trainer(plan, environment)
    if state_path.exists():
        with storage_errors(f"read {state_path}"):
            trainer.restore(safetensors.torch.load(state_path.read_bytes()))
    for stop in stops:
        if stop <= trainer.steps:
            continue
        environment.forget()
        trainer.advance(stop - trainer.steps)
        if stop in paths:
            trainer.policy().save(paths[stop])
        write_atomically(state_path, safetensors.torch.save(trainer.state()), mode=0o600)
        if progress is not None:
            progress(stop, plan.training_steps)
    return [Policy.load(path) for path in paths.values()]


def action_scale(environment: str) -> ActionScale:
    """Return the bounds of an environment's actions."""
    return ActionScale.of(_spaces(environment)[1])


def horizon_of(environment: str) -> int:
    """Return the steps of an environment's episodes."""
    horizon = gymnasium.spec(environment).max_episode_steps
    assert horizon is not None
    return horizon


def _spaces(environment: str) -> tuple[Any, Any]:
    made = gymnasium.make(environment)
    try:
        return made.observation_space, made.action_space
    finally:
        made.close()  # type: ignore[no-untyped-call]


def _trainer(plan: SnapshotPlan, environment: SimulatedEnvironment) -> SacTrainer:
    observation_space, action_space = _spaces(plan.environment)
    return SacTrainer(
        SacConfig(**plan.sac, horizon=horizon_of(plan.environment)),
        environment,
        observation_width=observation_space.shape[0],
        action_low=action_space.low,
        action_high=action_space.high,
        streams=Streams(plan.seed).child(f"collection/policies/{plan.environment}"),
    )
