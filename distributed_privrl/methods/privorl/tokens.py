"""DP-Transformer as a declared run: PrivORL-j with a causal transformer of tokens.

Reference: PrivORL, appendix E, DP-Transformer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.binning import foreseen_bins
from distributed_privrl.methods.privorl.config import DpTransformerConfig
from distributed_privrl.methods.privorl.method import World
from distributed_privrl.methods.privorl.step_tokens import step_variables
from distributed_privrl.methods.privorl.token_model import (
    TokenSynthesizer,
    network_weights,
)
from distributed_privrl.methods.privorl.trajectories import TrajectoriesMethod, step_bins
from distributed_privrl.models.row_bins import RowBins
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.coding import foreseen_encoder
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.method import StagePlan
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.verdict import Grade, Verdict

_NARROW = 2.5
"""Times that narrow layers and attention take what their weights alone say: measured on one core,
for a maze at the default width, in plain training and in rounds."""
NOT_JUDGED = "what rounds can teach a transformer of tokens was not measured"


class TokensMethod(TrajectoriesMethod):
    """PrivORL-j with tokens in place of a diffusion.

    Privacy: as `TrajectoriesMethod`: unit a trajectory or the unit column's value, relation
    ``privacy.relation``; a unit's vector is the gradient of the mean negative log-likelihood of its
    fragments' tokens, clipped once (event ``poisson_gaussian``). Bins are public facts.
    """

    config: DpTransformerConfig

    @property
    def smaller(self) -> str:
        """What makes the network smaller."""
        return "a smaller network (model.width, model.depth, model.bins) or fewer columns"

    def weights_of(self, encoder: TransitionEncoder) -> int:
        """Return about how many numbers rounds learn; see `PrivorlMethod.weights_of`."""
        return network_weights(self.config.model, self._foreseen(encoder))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds; each weight is used by every token of a step."""
        stages = super().stages(world, units)
        if world is None:
            return stages
        synthesizer = world.parts.synthesizer
        assert isinstance(synthesizer, TokenSynthesizer)
        return _by_token(stages, synthesizer.bins)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same for the columns that public facts tell."""
        stages = super().foreseen_stages(store, units)
        known = foreseen_columns(self.config.data, store)
        if known is None:
            return stages
        return _by_token(stages, self._foreseen(foreseen_encoder(self.config, known)))

    def _foreseen(self, encoder: TransitionEncoder) -> RowBins:
        return step_bins(foreseen_bins(encoder, self.config.model.bins))

    def _rounds(
        self,
        privacy: PrivacyConfig,
        units: UnitCount,
        weights: int | None,
        *,
        spent: float,
        **shown: Any,
    ) -> StagePlan:
        """Return the rounds, which nobody judges: no run of such a model was measured."""
        stage = super()._rounds(privacy, units, weights, spent=spent, **shown)
        plan = stage.plan
        assert isinstance(plan, RoundPlan)
        if plan.verdict is None:
            return stage
        verdict = Verdict(grade=Grade.NOT_JUDGED, reason=NOT_JUDGED, figures=plan.verdict.figures)
        return replace(stage, plan=replace(plan, verdict=verdict))


def _by_token(stages: Sequence[StagePlan], bins: RowBins) -> tuple[StagePlan, ...]:
    """Return the stages with the work of all tokens of a step, where a plan counts one."""
    observation, others = step_variables(bins)
    times = _NARROW * (len(observation) + len(others))
    return tuple(
        replace(stage, plan=replace(stage.plan, effort=stage.plan.effort.by_rows(times)))
        if isinstance(stage.plan, RoundPlan) and stage.plan.effort is not None
        else stage
        for stage in stages
    )
