"""The local update of a run's agent: what workers compute for an expert."""

from dataclasses import dataclass

from distributed_privrl.methods.expert.config import LocalExpertConfig
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.settings import local_settings
from distributed_privrl.updates.ensemble_clipping import EnsembleClip, EnsembleLayout
from distributed_privrl.updates.federated import FederatedUpdate
from distributed_privrl.updates.functional_training import FunctionalTrainer
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import LocalUpdate


@dataclass(frozen=True, kw_only=True)
class AgentUpdate:
    """Builds the local update of a run in a worker's process.

    Args:
        facts: of the agent.
        clip_norm: L2 bound of an expert's vector; None without privacy.
        micro_batch_rows: rows computed at once.
        federated: local training of an expert, in place of its gradient.
        device: where it is computed; what is clipped there and summed comes back to the CPU.
    """

    facts: AgentFacts
    clip_norm: float | None
    micro_batch_rows: int
    federated: LocalExpertConfig | None = None
    device: str = "cpu"

    @property
    def draw_count(self) -> int:
        """Standard normals that a row's loss needs."""
        return self.facts.row_loss.draw_count

    def __call__(self) -> LocalUpdate:
        """Return a fresh local update."""
        networks, loss = self.facts.networks().to(self.device), self.facts.row_loss
        if self.federated is None:
            return GradientLocalUpdate(
                module=networks,
                row_loss=loss,
                clip_norm=self.clip_norm,
                micro_batch_rows=self.micro_batch_rows,
            )
        clip = EnsembleClip(layout=EnsembleLayout.of(networks), clip_norm=self.clip_norm)
        trainer = FunctionalTrainer(
            module=networks, row_loss=loss, config=local_settings(self.federated), clip=clip
        )
        return FederatedUpdate(trainer=trainer, clip=clip)
