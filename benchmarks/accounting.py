"""What calibration and certification cost, beside other accountants, and the noise each asks for.

Each call asks for a sampling probability a billionth lower than the last, so that no figure that is
remembered shortens it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants.utils import get_noise_multiplier

from benchmarks import harness
from benchmarks.harness import Alternative, Result
from distributed_privrl.privacy.accounting import Accountant, epsilon
from distributed_privrl.privacy.calibration import PrivateRound, calibrate_private_round
from distributed_privrl.privacy.units import PrivacyBudget, Relation

CALIBRATE = "ours: calibrate, PLD"
CALIBRATE_RDP = "ours: calibrate, RDP"
CERTIFY = "ours: certify, PLD"
RELATION = Relation.REPLACE_WITH_NULL


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is accounted for.

    Args:
        epsilon: of the budget.
        delta: of the budget.
        sampling_probability: of each unit, each round.
        rounds: number of rounds.
        turns: timed turns of each alternative.
        intervals: of dp_accounting's privacy loss distributions.
        calls: how often the sampling probability was asked for.
    """

    epsilon: float
    delta: float
    sampling_probability: float
    rounds: int
    turns: int
    intervals: tuple[float, ...]
    calls: "count[int]" = field(default_factory=count)

    def fresh_probability(self) -> float:
        """Return a sampling probability that was not asked for before."""
        return self.sampling_probability * (1 - 1e-9 * next(self.calls))


FULL = Size(
    epsilon=1.0,
    delta=1e-6,
    sampling_probability=1e-3,
    rounds=10_000,
    turns=5,
    intervals=(1e-3, 1e-4),
)
QUICK = Size(
    epsilon=1.0,
    delta=1e-5,
    sampling_probability=0.01,
    rounds=100,
    turns=1,
    intervals=(1e-2,),
)


def run(quick: bool) -> Result:
    """Measure calibration by each accountant, and the certification of our result."""
    size = QUICK if quick else FULL
    mechanism = _calibrate(size, "pld")
    searches: dict[str, Callable[[], float]] = {
        CALIBRATE: lambda: _calibrate(size, "pld").noise_multiplier,
        CALIBRATE_RDP: lambda: _calibrate(size, "rdp").noise_multiplier,
        "Opacus RDP": lambda: _opacus(size, "rdp"),
        "Opacus PRV": lambda: _opacus(size, "prv"),
        "dp_accounting RDP": lambda: _dp_accounting(size, RdpAccountant),
    }
    for interval in size.intervals:
        name = f"dp_accounting PLD, interval {interval:g}"
        searches[name] = partial(_dp_accounting, size, _pld(interval))
    found = {CERTIFY: mechanism.noise_multiplier}
    alternatives = {
        name: Alternative(run=partial(_search, found, name, search))
        for name, search in searches.items()
    }
    alternatives[CERTIFY] = Alternative(run=lambda: _certify(size, mechanism))
    timings = harness.interleave(alternatives, turns=size.turns)
    cells: list[dict[str, Any]] = [
        {
            "accountant": name,
            "noise multiplier": f"{found[name]:.4f}",
            "CPU s": timing.cpu_median,
            "least": min(timing.cpu),
            "most": max(timing.cpu),
        }
        for name, timing in timings.items()
    ]
    return Result(
        cells=cells,
        ratios={
            "calibrate_seconds": timings[CALIBRATE].cpu_median,
            "certify_seconds": timings[CERTIFY].cpu_median,
        },
        notes=[
            f"epsilon {size.epsilon:g}, delta {size.delta:g}, sampling probability"
            f" {size.sampling_probability:g}, {size.rounds:,} rounds; certified epsilon"
            f" {_certify(size, mechanism):.5f}.",
        ],
    )


def _search(found: dict[str, float], name: str, search: Callable[[], float]) -> None:
    found[name] = search()


def _calibrate(size: Size, accountant: Accountant) -> PrivateRound:
    budget = PrivacyBudget(
        epsilon=size.epsilon, delta=size.delta, unit="transition", relation=RELATION
    )
    return calibrate_private_round(
        budget=budget,
        sampling_probability=size.fresh_probability(),
        rounds=size.rounds,
        clip_norm=1.0,
        accountant=accountant,
    )


def _certify(size: Size, mechanism: PrivateRound) -> float:
    fresh = replace(mechanism, sampling_probability=size.fresh_probability())
    return epsilon([fresh.event(size.rounds)], delta=size.delta, relation=RELATION)


def _opacus(size: Size, accountant: str) -> float:
    multiplier: float = get_noise_multiplier(
        target_epsilon=size.epsilon,
        target_delta=size.delta,
        sample_rate=size.fresh_probability(),
        steps=size.rounds,
        accountant=accountant,
    )
    return multiplier


def _pld(interval: float) -> Callable[[], PLDAccountant]:
    return lambda: PLDAccountant(value_discretization_interval=interval)


def _dp_accounting(size: Size, accountant: Callable[[], dp.PrivacyAccountant]) -> float:
    probability = size.fresh_probability()

    def event(noise_multiplier: float) -> dp.DpEvent:
        release = dp.GaussianDpEvent(noise_multiplier)
        sampled = dp.PoissonSampledDpEvent(probability, release)
        return dp.SelfComposedDpEvent(sampled, size.rounds)

    multiplier: float = dp.calibrate_dp_mechanism(
        accountant, event, size.epsilon, size.delta, dp.ExplicitBracketInterval(0.2, 20.0)
    )
    return multiplier


if __name__ == "__main__":
    harness.main("accounting", run)
