"""Gradient steps of the offline agents, against the plain way of writing them.

EDAC's critics as one batched network, their slopes written out, against a loop over critics that
differentiates twice; both share networks' values, batch, noise, actor, optimiser and targets. Then
IQL and TD3+BC in RLlib against the plain loop, and the bridge to RLlib.
"""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result, Timing
from benchmarks.rllib_steps import alternatives, make_bridge
from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.edac import (
    EDAC,
    EDACConfig,
    EDACLosses,
    EDACNetworks,
)
from distributed_privrl.agents.ensemble import EnsembleCritic
from distributed_privrl.agents.networks import polyak_update
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.squashed_gaussian import SquashedGaussian, temperature_loss
from distributed_privrl.agents.training import make_optimiser, update
from distributed_privrl.models.layers import mlp

SIZES = Sizes(observation=17, action=6)

BATCHED = "EDAC, one batched network"
LOOP = "EDAC, loop over critics"
RLLIB_AGENTS = ("iql", "td3bc")
EDAC_BOUND = "bound: EDAC's matrix products alone"


def batch_of(rows: int, noise_width: int) -> Batch:
    """Return random rows; values do not matter to the time."""
    generator = torch.Generator().manual_seed(SEED)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    pairs = torch.cat((draw(rows, SIZES.observation), draw(rows, SIZES.action).tanh()), dim=1)
    return Batch(
        pairs=pairs,
        observations=pairs[:, : SIZES.observation],
        actions=pairs[:, SIZES.observation :],
        rewards=draw(rows),
        next_observations=draw(rows, SIZES.observation),
        continues=torch.ones(rows),
        noise=draw(rows, noise_width),
    )


class LoopNetworks(nn.Module):
    """EDAC's networks with a list of critics.

    Args:
        networks: what they are copies of.
    """

    def __init__(self, networks: EDACNetworks) -> None:
        super().__init__()
        self.actor = copy.deepcopy(networks.actor)
        self.critics = nn.ModuleList(members_of(networks.critic))
        self.targets = nn.ModuleList(members_of(networks.target_critic)).requires_grad_(False)
        self.log_temperature = nn.Parameter(networks.log_temperature.detach().clone())

    distribution = EDACNetworks.distribution


def members_of(critic: EnsembleCritic) -> Iterator[nn.Sequential]:
    """Yield each critic of the ensemble as an MLP of its own."""
    weights, biases = list(critic.weights), list(critic.biases)
    widths = (weights[0].shape[1], *(weight.shape[2] for weight in weights))
    for member in range(len(weights[0])):
        network = mlp(widths, torch.Generator())
        linears = [layer for layer in network if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for linear, weight, bias in zip(linears, weights, biases, strict=True):
                linear.weight.copy_(weight[member].T)
                linear.bias.copy_(bias[member, 0])
        yield network


def loop_edac_losses(networks: LoopNetworks, batch: Batch, config: EDACConfig) -> EDACLosses:
    """Return `edac_losses`, one critic after the other, slopes by automatic differentiation."""
    noise, next_noise = batch.noise.chunk(2, dim=1)
    temperature = networks.log_temperature.detach().exp()
    with torch.no_grad():
        next_actions, next_log = networks.distribution(batch.next_observations).sample(next_noise)
        next_pairs = torch.cat((batch.next_observations, next_actions), dim=1)
        lowest = _values(networks.targets, next_pairs).amin(dim=0)
        next_value = lowest - temperature * next_log
        bellman_target = batch.rewards + config.discount * batch.continues * next_value
    critic = torch.zeros_like(bellman_target)
    directions: list[Tensor] = []
    for network in networks.critics:
        actions = batch.actions.detach().requires_grad_()
        values = network(torch.cat((batch.observations, actions), dim=1)).squeeze(-1)
        critic = critic + (values - bellman_target).square()
        (slopes,) = torch.autograd.grad(values.sum(), actions, create_graph=True)
        norms = torch.linalg.vector_norm(slopes, dim=1, keepdim=True)
        directions.append(slopes / (norms + 1e-10))
    likeness = sum(
        (one * other).sum(dim=1)
        for first, one in enumerate(directions)
        for second, other in enumerate(directions)
        if first != second
    )
    critic = critic + config.eta * likeness / (len(directions) - 1)
    for network in networks.critics:
        network.requires_grad_(False)
    distribution: SquashedGaussian = networks.distribution(batch.observations)
    actions, log_probability = distribution.sample(noise)
    lowest = _values(networks.critics, torch.cat((batch.observations, actions), dim=1))
    for network in networks.critics:
        network.requires_grad_(True)
    width = batch.actions.shape[1]
    return EDACLosses(
        temperature=temperature_loss(networks.log_temperature, log_probability, -width),
        actor=temperature * log_probability - lowest.min(dim=0).values,
        critic=critic,
    )


def _values(critics: Sequence[nn.Module] | nn.ModuleList, pairs: Tensor) -> Tensor:
    return torch.stack([network(pairs).squeeze(-1) for network in critics])


@dataclass(frozen=True)
class LoopEDAC(Algorithm[EDACConfig, LoopNetworks]):
    """EDAC with a loop over its critics.

    Args:
        config: hyper-parameters.
    """

    config: EDACConfig = field(default_factory=EDACConfig)
    name: ClassVar[str] = "edac"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> LoopNetworks:
        return LoopNetworks(EDAC(self.config).networks(sizes, generator))

    def losses(self, networks: LoopNetworks, batch: Batch, *, step: int) -> EDACLosses:
        return loop_edac_losses(networks, batch, self.config)

    def after_step(
        self, networks: LoopNetworks, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        polyak_update(networks.targets, networks.critics, self.config.polyak)

    def acting(self, networks: LoopNetworks) -> Acting:
        return Acting(networks.actor)


class AgentStep:
    """A gradient step of an agent, over and over on the same batch."""

    def __init__(self, algorithm: Algorithm[Any, Any]) -> None:
        self._algorithm = algorithm
        self.networks = algorithm.networks(SIZES, torch.Generator().manual_seed(SEED))
        self._optimiser = make_optimiser(algorithm, self.networks)
        width = EDAC(algorithm.config).noise_width(SIZES)
        self.batch = batch_of(algorithm.config.batch_size, width)

    def __call__(self) -> None:
        """Take a step."""
        update(self._algorithm, self.networks, self._optimiser, self.batch, step=1, steps=2)


class EDACProducts:
    """The products with hidden matrices that no step of the critics does without.

    A product each for the values of target, actor and data, for the value's gradient in each
    layer, for the slopes' gradient, and for the weights' gradient. (That of the actor's lowest
    critics is a tenth of one.)
    """

    def __init__(self, config: EDACConfig) -> None:
        pairs = zip(config.hidden, config.hidden[1:], strict=False)
        rows, members = config.batch_size, config.critics
        self._layers = [
            (torch.ones(rows, inputs), torch.ones(inputs, outputs), torch.ones(rows, outputs))
            for inputs, outputs in pairs
        ] * members

    @torch.no_grad()
    def __call__(self) -> None:
        """Multiply."""
        for rows, weight, gradient in self._layers:
            for _ in range(4):
                torch.mm(rows, weight)
            torch.mm(gradient, weight.t())
            torch.mm(rows.t(), gradient)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        edac: hyper-parameters.
        turns: timed turns of each alternative.
        runs_a_turn: steps timed together.
        rows: of the bridge.
        rllib_turns: timed turns of RLlib and the plain loop.
        rllib_steps: steps timed together.
        rllib_options: of IQL and TD3+BC, beside their defaults.
    """

    edac: EDACConfig
    turns: int
    runs_a_turn: int
    rows: int
    rllib_turns: int
    rllib_steps: int
    rllib_options: dict[str, Any] = field(default_factory=dict)


FULL = Scale(edac=EDACConfig(), turns=15, runs_a_turn=2, rows=10**6, rllib_turns=7, rllib_steps=200)
QUICK = Scale(
    edac=EDACConfig(hidden=(16, 16), critics=3, batch_size=32),
    turns=3,
    runs_a_turn=1,
    rows=2000,
    rllib_turns=2,
    rllib_steps=10,
    rllib_options={"hidden": (16,), "batch_size": 32},
)


def run(quick: bool) -> Result:
    """Measure a step of each, and the bridge."""
    scale = QUICK if quick else FULL
    ways = {
        BATCHED: Alternative(run=AgentStep(EDAC(scale.edac))),
        LOOP: Alternative(run=AgentStep(LoopEDAC(scale.edac))),
        EDAC_BOUND: Alternative(run=EDACProducts(scale.edac)),
    }
    timings = harness.interleave(ways, turns=scale.turns, runs_a_turn=scale.runs_a_turn)
    ratios = {
        "edac_vs_loop": timings[LOOP].cpu_median / timings[BATCHED].cpu_median,
        "edac_vs_bound": timings[EDAC_BOUND].cpu_median / timings[BATCHED].cpu_median,
    }
    with tempfile.TemporaryDirectory(prefix="privrl-") as folder:
        bridged = make_bridge(Path(folder), scale.rows, SIZES)
        compared = alternatives(
            RLLIB_AGENTS, bridged.bridge, SIZES, scale.rllib_steps, scale.rllib_options
        )
        trains = harness.interleave(compared, turns=scale.rllib_turns)
    for name in RLLIB_AGENTS:
        rllib, plain = trains[f"{name}, RLlib"], trains[f"{name}, plain loop"]
        ratios[f"{name}_vs_plain"] = rllib.cpu_median / plain.cpu_median
    facts = {
        "bridge_rows": scale.rows,
        "bridge_seconds": round(bridged.seconds, 2),
        "bridge_cpu_seconds": round(bridged.cpu_seconds, 2),
    }
    return Result(
        cells=_cells(timings) + _cells(trains, steps=scale.rllib_steps),
        ratios=ratios,
        notes=(*_notes(scale.edac), _bridge_note(facts)),
        facts=facts,
    )


def _bridge_note(facts: dict[str, Any]) -> str:
    return (
        f"Bridge of {facts['bridge_rows']} rows: {facts['bridge_seconds']} s on the clock,"
        f" {facts['bridge_cpu_seconds']} s of CPU."
    )


def _cells(timings: dict[str, Timing], *, steps: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "step": name,
            "CPU ms": 1e3 * timing.cpu_median / steps,
            "wall ms": 1e3 * timing.wall_median / steps,
            "steps per core-second": steps / timing.cpu_median,
        }
        for name, timing in timings.items()
    ]


def _notes(config: EDACConfig) -> tuple[str, ...]:
    return (
        f"Rows of {SIZES.observation} + {SIZES.action} numbers, {config.batch_size} a batch;"
        f" EDAC: {config.critics} critics of hidden widths {config.hidden}.",
        "EDAC's ratios: above 1, ours is faster. RLlib's: its CPU time over the plain loop's; Ray's"
        " processes count.",
    )


if __name__ == "__main__":
    harness.main("offline_trainers", run)
