from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.evaluation import canaries
from distributed_privrl.evaluation.canaries import canary_round, measured_mu
from distributed_privrl.evaluation.one_run import epsilon_at_least
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger, LedgerEntry
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.totals import total_of
from tests.planted import fragment_bugs, unit_bugs

ROUND = PrivateRound(clip_norm=1.5, noise_multiplier=0.1, sampling_probability=0.02)
FAR = 5.0  # standard errors: false alarms below 1e-6


def test_mu_by_hand() -> None:
    released = np.array([3.0, 5.0, 4.0, -1.0, 1.0, 0.0])
    inside = np.array([True, True, True, False, False, False])
    found = measured_mu(released, inside, charged=3.0)
    # Means 4 and 0, variance (2 + 2) / 4; error sqrt(1/3 + 1/3 + 16/8).
    assert found.value == pytest.approx(4)
    assert found.high - found.value == pytest.approx(1.959964 * np.sqrt(2 / 3 + 2))
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert found.chance == 3.0
    with pytest.raises(ConfigError, match="take more"):
        measured_mu(released, np.ones(6, bool), charged=1.0)


@pytest.mark.parametrize("multiplier", [0.1, 2.0])
def test_a_round_shows_what_it_is_charged_as(multiplier: float) -> None:
    mechanism = replace(ROUND, noise_multiplier=multiplier)
    found = canary_round(mechanism, canaries=4000)
    assert found.charged_mu == pytest.approx(1 / multiplier)
    error = (found.mu.high - found.mu.low) / (2 * 1.96)
    assert abs(found.mu.value - found.charged_mu) < FAR * error
    assert error < 0.02 * found.charged_mu + 0.04
    assert abs(found.participants - 2000) < FAR * np.sqrt(1000)
    assert abs(found.sampled.value - 0.02) < FAR * np.sqrt(0.02 * 0.98 / 4000)
    assert found.sampled.chance == 0.02


def test_guesses_bound_epsilon_from_below_and_see_noise_that_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delta = 1e-7

    def bound(mechanism: PrivateRound) -> float:
        found = canary_round(mechanism, canaries=4000)
        return epsilon_at_least(found.guesses, delta=delta, confidence=1 - 1e-5)

    def charged(mechanism: PrivateRound) -> float:
        event = replace(mechanism, sampling_probability=1.0).event(1)
        return epsilon((event,), delta=delta, relation=mechanism.relation)

    little, much = (replace(ROUND, noise_multiplier=multiplier) for multiplier in (1.0, 4.0))
    assert 0 < bound(little) < charged(little)
    assert bound(much) < charged(much)
    monkeypatch.setattr(SecureNoise, "_add_normals", lambda *_: None)
    assert bound(much) > charged(much)


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_noise_of_another_scale_is_seen(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = SecureNoise._add_normals

    def wrong(self: SecureNoise, *arguments: object) -> None:
        *others, scale, granularity = arguments
        right(self, *others, factor * float(scale), granularity)  # type: ignore[arg-type]

    monkeypatch.setattr(SecureNoise, "_add_normals", wrong)
    mu = canary_round(ROUND, canaries=4000).mu
    assert not mu.low < mu.chance < mu.high
    assert mu.value == pytest.approx(mu.chance / factor, rel=0.08)


def test_coins_of_another_probability_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = canaries._worker_specs

    def wrong(*arguments: Any) -> object:
        specs = right(*arguments)
        return [replace(spec, sampling_probability=2 * spec.sampling_probability) for spec in specs]

    monkeypatch.setattr(canaries, "_worker_specs", wrong)
    sampled = canaries._participants(ROUND, 4000, None, 1, LocalExecutor())
    low, _ = canaries.exact_interval(int(sampled.sum()), 4000, 0.95)
    assert low > 0.02


def test_units_of_several_rows_show_what_they_are_charged_as() -> None:
    found = canary_round(ROUND, canaries=4000, rows=3)
    error = (found.mu.high - found.mu.low) / (2 * 1.96)
    assert found.rows == 3
    assert abs(found.mu.value - found.charged_mu) < FAR * error
    assert abs(found.participants - 2000) < FAR * np.sqrt(1000)
    assert abs(found.sampled.value - 0.02) < FAR * np.sqrt(0.02 * 0.98 / 4000)


@pytest.mark.parametrize("plant", [unit_bugs.clip_each_copy, fragment_bugs.coins_of_fragments])
def test_rows_that_count_as_units_are_seen(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = canary_round(ROUND, canaries=4000, rows=3)
    mu, sampled = found.mu, found.sampled
    assert not (mu.low < mu.chance < mu.high and sampled.low < sampled.chance < sampled.high)


def test_sums_that_are_lost_on_the_way_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes in between that lose a part of what they add up: mu is smaller by as much."""

    def smaller(sums: Any, *, out: Any) -> Any:
        return total_of(sums, out=out) * 0.7

    monkeypatch.setattr("distributed_privrl.rounds.totals.total_of", smaller)
    mu = canary_round(ROUND, canaries=4000).mu
    assert mu.value == pytest.approx(0.7 * mu.chance, rel=0.1)


def test_a_test_key_repeats_the_round() -> None:
    assert canary_round(ROUND, canaries=200, insecure_key=1) == canary_round(
        ROUND, canaries=200, insecure_key=1
    )


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(ConfigError, match="canaries must be at least 100, got 10"):
        canary_round(ROUND, canaries=10)


def test_the_temporary_ledger_states_what_the_round_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[LedgerEntry] = []

    class Kept(Ledger):
        def close(self) -> None:
            entries.extend(self.entries())
            super().close()

    monkeypatch.setattr(canaries, "Ledger", Kept)
    found = canary_round(ROUND, canaries=200, insecure_key=1)
    assert found.noise_source == "insecure_seeded"
    (entry,) = entries
    event = replace(ROUND, sampling_probability=0.5).event(1)
    charged = epsilon((event,), delta=entry.delta, relation=ROUND.relation, accountant="pld")
    assert entry.epsilon == pytest.approx(charged, rel=0.01)
    assert entry.epsilon != 1.0
