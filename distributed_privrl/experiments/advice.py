"""Which method to take for what is publicly known, and the measurement that says so."""

from dataclasses import dataclass

from distributed_privrl.core.config import OutputConfig, RunConfig, TrajectoryOutputConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.measured import Measured
from distributed_privrl.stages.plan import Plan


def _fleet(cell: str, value: float, *, result: str = "utility_tables_fleet") -> Measured:
    row = (("table", "fleet"), ("cell", cell))
    return Measured(result=result, row=row, figure="association gap", value=value)


def _maze(variant: str, value: float) -> Measured:
    row = (("maze", "umaze"), ("variant", variant), ("epsilon", 10.0))
    return Measured(result="utility_maze2d_j", row=row, figure="iql", value=value)


_ROUNDS = _fleet("privorl_ar, eps 4", 0.146, result="utility_tables")
MARGINALS = (_fleet("marginals, eps 4", 0.0422), _ROUNDS)
MARGINALS_J = (_fleet("marginals_j, eps 4", 0.045), _ROUNDS)
AR = (_maze("privorl_ar", 43.1), _maze("privorl_n", 24.8))
AR_J = (_maze("ours", 56.3), _maze("privorl_j", -3.37))
EVIDENCE = (*MARGINALS, *MARGINALS_J, *AR, *AR_J)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The method to take, why, and what was measured.

    Args:
        method: its name.
        reason: in words.
        measured: the figures that it rests on, its own first.
    """

    method: str
    reason: str
    measured: tuple[Measured, ...]

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.method}: {self.reason}; {', against '.join(map(str, self.measured))}"

    def facts(self) -> dict[str, object]:
        """Return what ``privrl plan --json`` writes."""
        return {
            "method": self.method,
            "reason": self.reason,
            "measured": [str(one) for one in self.measured],
        }


def advised_method(config: RunConfig) -> Advice | None:
    """Return the method to take for a run that releases a dataset; None: it releases a policy.

    Public rows teach a model of rounds nearly all, for no epsilon. Without them, rounds have to
    learn everything under noise, and counts do better.

    Args:
        config: of the run; says whether whole trajectories leave, and whether there are public
            rows.
    """
    whole = isinstance(config.output, TrajectoryOutputConfig)
    if not (whole or isinstance(config.output, OutputConfig)):
        return None
    if config.data.public:
        reason = "public rows teach it before the rounds, for no epsilon"
        if whole:
            return Advice(method="privorl_ar_j", reason=reason, measured=AR_J)
        return Advice(method="privorl_ar", reason=reason, measured=AR)
    reason = "nobody has public rows, and counts need no training under noise"
    if whole:
        reason += "; steps are joined by the state that they lead to"
        return Advice(method="marginals_j", reason=reason, measured=MARGINALS_J)
    return Advice(method="marginals", reason=reason, measured=MARGINALS)


def columns_to_tell(
    config: RunConfig, plan: Plan, *, assumed: bool, store: DatasetStore | None = None
) -> str | None:
    """Return what to give so that a plan knows its columns; None: it does, or needs none.

    Args:
        config: of the run.
        plan: of it.
        assumed: whether it is made for columns that nobody named.
        store: datasets, as in `registry.plan_run`.
    """
    from distributed_privrl.experiments.registry import method_named

    if not method_named(config.method).declare(config).has_columns:
        return None
    if not (assumed or plan.effort is None) or foreseen_columns(config.data, store) is not None:
        return None
    lacking = "they are assumed" if assumed else "so neither minutes nor a verdict are known"
    return (
        f"nothing public tells them, {lacking}: import the dataset, of which a plan reads the"
        " declared spaces and no row, or give a data.bounds file that lists low and high of each"
        " number"
    )
