"""SAC inside the pessimistic model, in an actor of its own, resumable.

Reference: PriMORL, algorithm 4.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from torch import Tensor

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.sac import SacTrainer
from distributed_privrl.agents.training import packed_rows
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.environments.termination import termination_rule
from distributed_privrl.evaluation.returns import evaluate_policy
from distributed_privrl.methods.primorl.config import (
    PolicyEvaluationConfig,
    PolicyTrainingConfig,
)
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.model_environment import ModelEnvironment, PessimisticModel
from distributed_privrl.methods.primorl.mopo import proper_rows
from distributed_privrl.methods.primorl.settings import MODEL_ROLLOUTS, policy_settings
from distributed_privrl.methods.primorl.start_states import StartStates
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.worker import ShardSource

CURVE = "policy_curve.json"
POLICIES = "policies"


@dataclass(frozen=True, kw_only=True)
class PolicyTrainerSpec:
    """What a policy's training is built from: the ensemble that was released, and public facts.

    Args:
        run_id: the run's name in the ledger.
        ensemble: checkpoint of the private rounds.
        facts: what is public about the ensemble.
        starts: where rollouts begin.
        folder: where training is kept.
        config: of SAC and of the pessimism.
        horizon: steps of a rollout (H).
        evaluation: how the policy is tried along the way.
        environment: Gymnasium id of a public simulator to try it in, and whose rule ends rollouts;
            None: nowhere, and nothing ends them.
        seed: the run's public seed.
        checkpoint_steps: gradient steps between checkpoints.
        restart: which of the trainings that differ in their draws alone this is; all are judged by
            the same ones.
        real: recorded rows that take part in every batch, of a run without privacy alone.
        device: where to compute; checkpoints can be taken up on another one.
    """

    run_id: str
    ensemble: Path
    facts: EnsembleFacts
    starts: StartStates
    folder: Path
    config: PolicyTrainingConfig
    horizon: int
    evaluation: PolicyEvaluationConfig
    environment: str | None
    seed: int
    checkpoint_steps: int
    restart: int = 0
    real: ShardSource | None = None
    device: str = "cpu"

    @property
    def checkpoint(self) -> Path:
        """Where the trainer's state is kept."""
        return self.folder / "policy_training.safetensors"

    @property
    def curve(self) -> Path:
        """Where the returns along the way are kept, in the model and in the simulator."""
        return self.folder / CURVE

    def restarts(self) -> list["PolicyTrainerSpec"]:
        """Return what each of the trainings is built from; a single one is this one."""
        count = self.config.restarts
        if count == 1:
            return [self]
        return [
            replace(self, restart=index, folder=self.folder / POLICIES / str(index))
            for index in range(count)
        ]

    def model(self) -> ModelEnvironment:
        """Return the pessimistic model with its start states."""
        tensors, _ = load_checkpoint(self.ensemble, run_id=self.run_id, stage="rounds")
        model = PessimisticModel(
            ensemble=self.facts.load(tensors["ema"]).to(self.device),
            facts=self.facts.model_facts.to(self.device),
            penalty=self.config.penalty,
            penalty_weight=self.config.penalty_weight,
            terminates=None if self.environment is None else termination_rule(self.environment),
        )
        return ModelEnvironment(model=model, start_states=self.starts)

    def trainer(self) -> SacTrainer:
        """Return a fresh trainer in the pessimistic model."""
        normalisation, facts = observation_normalisation(self.facts.encoder), self.facts.model_facts
        return SacTrainer(
            policy_settings(self.config, self.horizon),
            self.model(),
            observation_width=facts.observation_width,
            action_low=facts.actions.low.numpy(),
            action_high=facts.actions.high.numpy(),
            streams=self._streams(),
            normalisation=normalisation,
            real_rows=None if self.real is None else self._real_rows(self.real, normalisation),
            device=self.device,
        )

    def _streams(self) -> Streams:
        streams = Streams(self.seed).child("policy")
        return streams.child(f"restart/{self.restart}") if self.restart else streams

    def _real_rows(self, source: ShardSource, normalisation: Normalisation) -> Tensor:
        """Return recorded rows as the trainer's batches hold them. Private."""
        encoder, actions = self.facts.encoder, self.facts.model_facts.actions
        rows = packed_rows(
            encoder.decode(proper_rows(source)),
            observation_space=encoder.observation_space,
            action_space=Box(actions.low.numpy(), actions.high.numpy()),
            normalisation=normalisation,
        )
        return torch.from_numpy(rows)


def observation_normalisation(encoder: TransitionEncoder) -> Normalisation:
    """Return the normalisation of observations that the encoder's public scaling means."""
    columns = encoder.layout.blocks["observation"]
    scaling = encoder.scaling
    return Normalisation(
        mean=scaling.offset[columns].astype("float32"),
        spread=scaling.scale[columns].astype("float32"),
    )


class PolicyTrainer:
    """Trains the policy.

    Privacy: reads the released ensemble, public start states and a public simulator: no event.
    """

    def __init__(self, spec: PolicyTrainerSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._trainer, self._model = spec.trainer(), spec.model()
        self._curve: list[dict[str, Any]] = []
        if spec.checkpoint.exists():
            tensors, state = load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="policy")
            self._trainer.restore(tensors)
            self._curve = [
                point for point in self._stored_curve() if point["step"] <= state.round_index
            ]

    def _stored_curve(self) -> list[dict[str, Any]]:
        if not self._spec.curve.exists():
            return []
        with storage_errors(f"read {self._spec.curve}"):
            return list(json.loads(self._spec.curve.read_text()))

    def progress(self) -> int:
        """Return the gradient steps done."""
        return self._trainer.steps

    def advance(self, steps: int) -> int:
        """Take up to ``steps`` gradient steps and return how many are done in all."""
        spec, total = self._spec, self._spec.config.steps
        for _ in range(min(steps, total - self._trainer.steps)):
            self._trainer.advance(1)
            done = self._trainer.steps
            if done % spec.evaluation.every == 0 or done == total:
                self._evaluate(done)
            if done % spec.checkpoint_steps == 0 or done == total:
                self._save(done)
        return self._trainer.steps

    def _evaluate(self, done: int) -> None:
        spec, policy = self._spec, self._trainer.policy()
        streams = Streams(spec.seed).child("policy")
        promised = model_return(
            policy,
            self._model,
            horizon=spec.horizon,
            generator=torch.Generator().manual_seed(streams.integer("evaluation in the model")),
        )
        point: dict[str, Any] = {"step": done, "model_return": promised}
        if spec.environment is not None and spec.evaluation.episodes:
            returns = evaluate_policy(
                policy,
                spec.environment,
                episodes=spec.evaluation.episodes,
                seed=streams.integer("evaluation"),
            )
            point["returns"] = list(returns.per_episode)
        self._curve.append(point)

    def _save(self, done: int) -> None:
        spec = self._spec
        curve = json.dumps(strict_json(self._curve), allow_nan=False)
        write_atomically(spec.curve, curve, mode=0o600)
        state = CheckpointState(run_id=spec.run_id, round_index=done, stage="policy")
        save_checkpoint(spec.checkpoint, self._trainer.state(), state)


def model_return(
    policy: Policy,
    model: ModelEnvironment,
    *,
    horizon: int,
    generator: torch.Generator,
    rollouts: int = MODEL_ROLLOUTS,
) -> float:
    """Return the mean pessimistic return inside the model: what it promises, not what is earned.

    Args:
        policy: acts without noise.
        model: steps, and start states.
        horizon: steps of a rollout (H), unless it terminates before.
        generator: source of starts, members and noise; public.
        rollouts: how many.

    Privacy: post-processing of the released ensemble and start states; no event.
    """
    observations = model.reset(rollouts, generator)
    totals = observations.new_zeros(rollouts)
    going = torch.ones_like(totals, dtype=torch.bool)
    for _ in range(horizon):
        actions = torch.from_numpy(policy.act(observations.cpu().numpy())).to(totals.device)
        observations, rewards, over = model.step(observations, actions, generator)
        totals += rewards.where(going, 0.0)
        going &= ~over
    return float(totals.mean())


def strict_json(value: Any) -> Any:
    """Return ``value`` with null for what is not finite: what noise spoiled may earn anything."""
    if isinstance(value, dict):
        return {key: strict_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [strict_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def keep_most_promising(spec: PolicyTrainerSpec) -> None:
    """Put checkpoint and curve of the training that the models promise the most where ``spec`` is.

    Judged by the return of its last policy in the models, not by the simulator, nor by how often it
    was tried along the way; one without a finite promise is taken only where there is no other.
    Repeating it changes nothing.

    Privacy: post-processing of the released ensemble and start states; no event.
    """
    trainings = spec.restarts()
    if trainings == [spec]:
        return
    best = max(trainings, key=_promise)
    for source, target in ((best.checkpoint, spec.checkpoint), (best.curve, spec.curve)):
        with storage_errors(f"copy {source}"):
            write_atomically(target, source.read_bytes(), mode=0o600)


def _promise(spec: PolicyTrainerSpec) -> float:
    with storage_errors(f"read {spec.curve}"):
        last = json.loads(spec.curve.read_text())[-1]["model_return"]
    return -math.inf if last is None else float(last)


def trained_policy(spec: PolicyTrainerSpec) -> Policy:
    """Return the policy in the last checkpoint, wherever it was trained."""
    trainer = replace(spec, device="cpu").trainer()
    tensors, _ = load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="policy")
    trainer.restore(tensors)
    return trainer.policy()
