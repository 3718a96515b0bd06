"""Trajectories from an autoregressive model of steps, each given the step before it.

The path is that of PrivORL, algorithm 2 (fragments of whole trajectories, one vector a unit); the
model is not the paper's diffusion. A step begins where the one before it led to, so that only an
episode's first observation is drawn, and nothing has to be stitched.

A run makes it before its budget is held: what builds networks or draws from them imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.fragments import END_BITS
from distributed_privrl.methods.privorl.autoregressive import autoregressive
from distributed_privrl.methods.privorl.fragment_coding import CodedFragments
from distributed_privrl.methods.privorl.model_config import StepModelConfig
from distributed_privrl.methods.privorl.sampling_config import StepRolloutConfig
from distributed_privrl.methods.privorl.support import Support
from distributed_privrl.methods.privorl.weights import binned_weights, step_context_width
from distributed_privrl.models.chunks import chunk_count
from distributed_privrl.models.row_bins import RowBins

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from distributed_privrl.core.random import Streams
    from distributed_privrl.methods.privorl.step_loss import StepLoss
    from distributed_privrl.models.autoregressive import AutoregressiveNetwork


@dataclass(frozen=True, kw_only=True)
class StepSynthesizer(CodedFragments):
    """Fragments of H steps as a chain of steps; see `update.Synthesizer`.

    Args:
        model: its configuration.
        bins: the variables of a step.
    """

    model: StepModelConfig
    bins: RowBins

    @property
    def tick(self) -> float:
        """What a step adds to the clock."""
        limit = self.fragments.time_limit
        return 0.0 if limit is None else 2 / limit

    @property
    def public_parts(self) -> tuple[str, ...]:
        """Parts whose networks public data alone teach."""
        return self.model.public_parts

    @property
    def weights(self) -> int:
        """How many numbers rounds learn."""
        return binned_weights(self.model, self.bins, context=self.context)

    @property
    def context(self) -> int:
        """Numbers that networks are shown beside a step's own columns."""
        return step_context_width(self.fragments.step_width)

    @property
    def row_loss(self) -> StepLoss:
        """The negative log-likelihood."""
        from distributed_privrl.methods.privorl.step_loss import StepLoss

        block = self.fragments.transitions.layout.blocks["observation"]
        count = sum(one.stop <= block.stop for one in self.bins.variables)
        return StepLoss(
            layout=self.fragments.layout,
            observations=count,
            first_weight=self.model.first_weight,
            tick=self.tick,
        )

    def build(self, seed: int) -> AutoregressiveNetwork:
        """Return a fresh network."""
        from distributed_privrl.methods.privorl.update import initial_weights
        from distributed_privrl.models.autoregressive import AutoregressiveNetwork

        return AutoregressiveNetwork(
            self.bins,
            hidden=self.model.hidden,
            column_frequencies=self.model.column_frequencies,
            context=self.context,
            generator=initial_weights(seed),
        )

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return samples after the linking steps of the fragments in ``given``.

        They are cheap, whatever ``steps`` is.
        """
        import torch

        condition, _, mask = self.fragments.layout.split(given)
        linked = (condition != 0).any(dim=1)
        passed = torch.where(linked, (condition[:, -1] + 1) / max(self.tick, 1e-9), 0.0)
        drawn = torch.zeros(len(given), *mask.shape[1:], self.fragments.step_width)
        before, done = condition.cpu(), torch.zeros(len(given), dtype=torch.bool)
        for step in range(self.model.horizon):
            own = self.step(network, before, linked | (step > 0), passed + step, generator)
            own[done, :-END_BITS] = 0.0
            own[done, -END_BITS:] = before[done, -END_BITS:]
            drawn[:, step] = own
            done = done | (own[:, -END_BITS:] > 0).any(dim=1)
            before = own
        ones = torch.ones_like(mask)
        return torch.cat((condition, drawn.flatten(1).to(condition), ones), dim=1)

    def step(
        self,
        network: nn.Module,
        before: Tensor,
        linked: Tensor,
        passed: Tensor,
        generator: torch.Generator,
        *,
        floor: float = 0.0,
    ) -> Tensor:
        """Return the next encoded step of each trajectory ``(N, S)``, on the CPU.

        Args:
            network: as built, with the trained parameters.
            before: the step before ``(N, S)``; not looked at where there is none.
            linked: whether there is one ``(N,)``.
            passed: steps of the trajectory so far ``(N,)``.
            generator: public, on the network's device.
            floor: see `AutoregressiveNetwork.draw`.
        """
        import torch

        from distributed_privrl.methods.privorl.step_loss import step_context

        made = autoregressive(network)
        device = generator.device
        drawn = torch.zeros(before.shape)
        for chosen, follows in ((linked, True), (~linked, False)):
            places = torch.nonzero(chosen.cpu())[:, 0]
            if not len(places):
                continue
            first = torch.full((len(places),), 0.0 if follows else 1.0, device=device)
            clock = (self.tick * passed[chosen].float() - 1).clamp(max=1.0).to(device)
            context = step_context(before[places].to(device), first, clock)
            given = self._begun(before[places]).to(device) if follows else None
            own = made.draw(
                len(places), generator=generator, floor=floor, context=context, given=given
            )
            drawn[places] = own.cpu()
        return drawn

    def _begun(self, before: Tensor) -> Tensor:
        """Return the encoded observation that each step led to ``(N, O)``."""
        import torch

        encoder = self.fragments
        decoded, _ = encoder.decode_steps(before.cpu().numpy())
        moved = replace(decoded, observations=decoded.next_observations)
        rows = encoder.transitions.encode(moved).rows
        return torch.from_numpy(rows[:, encoder.transitions.layout.blocks["observation"]])


@dataclass(frozen=True, kw_only=True)
class StepDrawer:
    """Draws whole trajectories, all of a chunk step by step; see `release.ChunkDrawer`.

    Args:
        synthesizer: of the steps.
        trajectories: of all chunks together.
        config: of the drawing.
        max_length: steps of a trajectory at most; one that is cut there is marked truncated.
        support: trajectories that begin a step outside it are drawn again; None: none is.
        attempts: how often, before they are kept.
    """

    synthesizer: StepSynthesizer
    trajectories: int
    config: StepRolloutConfig
    max_length: int
    support: Support | None = None
    attempts: int = 0

    @property
    def count(self) -> int:
        """The number of chunks."""
        return chunk_count(rows=self.trajectories, chunk_rows=self.config.chunk_trajectories)

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the encoded steps ``(sum T, S)`` of chunk ``index``."""
        import torch

        size = self.config.chunk_trajectories
        count = min(size, self.trajectories - index * size)
        generator = torch.Generator(device).manual_seed(streams.integer(f"chunk/{index}"))
        owners, steps = self._roll(network, count, generator)
        for _ in range(self.attempts):
            if self.support is None:
                break
            astray = np.unique(owners[~self.support.contains(steps)])
            if not len(astray):
                break
            again, fresh = self._roll(network, len(astray), generator)
            kept = ~np.isin(owners, astray)
            owners = np.concatenate([owners[kept], astray[again]])
            steps = np.concatenate([steps[kept], fresh])
        return torch.from_numpy(steps[np.argsort(owners, kind="stable")])

    def _roll(
        self, network: nn.Module, count: int, generator: torch.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the steps ``(sum T, S)`` of ``count`` trajectories and whose each is ``(sum T,)``.

        All first steps come first, then all second ones.
        """
        import torch

        before = torch.zeros(count, self.synthesizer.fragments.step_width)
        live, parts = np.arange(count), []
        for passed in range(self.max_length):
            steps = self.synthesizer.step(
                network,
                before,
                torch.full((len(live),), passed > 0),
                torch.full((len(live),), passed),
                generator,
                floor=self.config.floor,
            )
            ended = _settled_ends(steps, last=passed + 1 == self.max_length)
            parts.append((live, steps.numpy()))
            live, before = live[~ended], steps[torch.from_numpy(~ended)]
            if not len(live):
                break
        owners = np.concatenate([own for own, _ in parts])
        return owners, np.concatenate([steps for _, steps in parts])


def _settled_ends(steps: Tensor, *, last: bool) -> NDArray[np.bool_]:
    """Return which steps end their trajectory; at the ``last`` one all do, in place."""
    bits = steps[:, -END_BITS:]
    both = (bits > 0).all(dim=1)
    bits[both, -1] = -1.0  # what terminates is not cut as well
    if last:
        bits[bits[:, 0] <= 0, -1] = 1.0
    ended: NDArray[np.bool_] = (bits > 0).any(dim=1).numpy()
    return ended
