"""Gates on the round, the sampler, the noise and the ledger: each fails if a promise is broken.

A gate takes a `System`, runs the assembled path (workers, server, mechanism, noise, ledger) and
raises ``AssertionError``. `tests/planted` shows which bug each one sees.
"""

import contextlib
import io
import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.units import PrivacyBudget, UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.round_plan import RoundPlan, RoundsConfig
from distributed_privrl.stages.training import run_rounds
from tests.gates.bounds import (
    assert_dispersion,
    assert_few_alike,
    assert_normal_shape,
    assert_uncorrelated,
    assert_unit_variance,
    assert_z,
)
from tests.gates.system import (
    CLIP_NORM,
    GateRun,
    System,
    coordinate_update,
    observe,
    observed,
)
from tests.worlds.toy_run import RUN_ID, UNITS

NOBODY = 1e-12


def gate_noise_scale(system: System) -> None:
    """All-zero rounds are N(0, (z C)^2), z as charged, whatever the number of workers.

    Each coordinate has noise of its own: none is another's, nor its negative.
    """
    everything = []
    null = system.units(np.ones((UNITS, 5)), 2, valid=np.zeros(UNITS, bool))
    for workers, sources, probability in (
        (1, None, NOBODY),
        (2, None, NOBODY),
        (4, None, NOBODY),
        (2, null, 0.5),
    ):
        run = system.run(
            workers=workers,
            sources=sources,
            sampling_probability=probability,
            noise_multiplier=1.3,
            rounds=8,
            block=8,
        )
        seen = observe(run)
        assert len(seen.steps) == 8
        noise = np.stack(seen.steps) / run.charged_deviation()
        assert_unit_variance(noise, f"noise with {workers} workers, q={probability:g}")
        everything.append(noise)
    assert_normal_shape(np.concatenate(everything), "noise")
    assert_few_alike(np.concatenate(everything), "noise")


def gate_fresh_noise(system: System) -> None:
    """No round's noise has to do with another's, in the same run or in another."""
    runs = [
        system.run(sampling_probability=NOBODY, rounds=4, block=4, draw_ahead=draw_ahead)
        for draw_ahead in (False, False, True, True)
    ]
    steps = [observe(run).steps for run in runs]
    assert_uncorrelated(np.concatenate([np.stack(rounds) for rounds in steps]), "noise of rounds")


def gate_poisson_sampling(system: System) -> None:
    """Each unit of each worker takes part by a coin of its own, in each round anew."""
    units, rounds, q = 48, 64, 0.25
    rows = np.stack([np.arange(units), np.full(units, 10.0)], axis=1)
    runs = [
        system.run(
            workers=3,
            sources=system.units(rows, 3),
            declared_units=units,
            update=coordinate_update(units),
            sampling_probability=q,
            rounds=rounds,
            block=rounds,
        )
        for _ in range(2)
    ]
    sums = np.stack([np.stack(observe(run).sums) for run in runs]) / CLIP_NORM
    part = np.rint(sums)  # (runs, rounds, units)
    assert np.abs(sums - part).max() < 1e-4, "a unit's clipped vector is not of norm C"
    assert set(np.unique(part)) <= {0.0, 1.0}, "a unit took part more than once in a round"
    centred = (part - q) / np.sqrt(q * (1 - q))
    means = centred.mean(axis=(0, 1)) * np.sqrt(2 * rounds)
    assert_z(float(means[np.abs(means).argmax()]), "inclusion of a unit", tests=units)
    assert_z(float(centred.mean() * np.sqrt(centred.size)), "inclusion")
    sizes = centred.sum(axis=2).ravel() / np.sqrt(units)
    assert_dispersion(float(sizes @ sizes), sizes.size, "variance of the batch size, n q (1 - q)")
    assert_uncorrelated(part.reshape(-1, units).T, "inclusion of two units")
    for what, products in (
        ("inclusion of a unit in successive rounds", centred[:, 1:] * centred[:, :-1]),
        ("inclusion of a unit in two runs", centred[0] * centred[1]),
    ):
        assert_z(float(products.mean() * np.sqrt(products.size)), what)
    (charged,) = runs[0].entry().event["events"]
    assert charged["sampling_probability"] == q, "another q is charged"


def gate_charged_draws(system: System) -> None:
    """Every Gaussian draw is charged before it is made, and every charge is drawn or lost."""
    run = system.run(workers=2, rounds=12, block=5)

    def check(draws: int, next_draw: int) -> None:
        entry = run.entry()
        assert draws + next_draw <= entry.reserved_rounds, "a draw is not covered by a reservation"
        assert entry.committed_rounds <= draws, "more rounds are committed than were drawn"
        assert entry.drawn_rounds <= entry.reserved_rounds <= entry.max_rounds

    watch = observed(run.expected_units, on_draw=lambda draws: check(draws, 1))
    with watch as seen, run.server() as server:
        while not server.call("advance", {"rounds": 1})[0].finished:
            check(len(seen.sums), 0)
    entry = run.entry()
    counts = (entry.reserved_rounds, entry.drawn_rounds, entry.committed_rounds)
    assert counts == (12, 12, 12), f"12 rounds are counted as {counts}"
    assert len(seen.sums) == 12, f"12 rounds made {len(seen.sums)} Gaussian draws"
    assert [event["kind"] for event in entry.event["events"]] == ["poisson_gaussian"]

    crashed = system.run(rounds=12, block=5)
    with observed(crashed.expected_units) as seen:
        with crashed.server() as server:
            server.call("advance", {"rounds": 8})  # the process ends here, without a word
        with crashed.server() as server:
            server.call("advance", {"rounds": 50})
    entry = crashed.entry()
    counts = (entry.reserved_rounds, entry.drawn_rounds, entry.committed_rounds)
    assert len(seen.sums) == 15, f"8 + 7 rounds made {len(seen.sums)} Gaussian draws"
    assert counts == (17, 17, 12), f"a crash after 3 of 5 rounds of a block gives {counts}"


def gate_orthogonal_canaries(system: System) -> None:
    """The trade-off that one round realises is that of the event it was charged as."""
    canaries, z = system.canaries, 0.1
    rows = np.stack([np.arange(canaries), np.full(canaries, 1e3)], axis=1)
    run = system.run(
        workers=2,
        sources=system.units(rows, 2),
        declared_units=canaries,
        update=coordinate_update(canaries),
        sampling_probability=0.5,
        noise_multiplier=z,
        rounds=1,
    )
    (released,) = observe(run).steps
    inside = released > CLIP_NORM / 2  # five standard deviations from either side
    size = int(inside.sum())
    assert_z((size - canaries / 2) / np.sqrt(canaries / 4), "canaries that took part")
    gap = released[inside].mean() - released[~inside].mean()
    spread = np.concatenate(
        [released[inside] - released[inside].mean(), released[~inside] - released[~inside].mean()]
    ).std()
    (event,) = run.entry().event["events"]
    estimate, charged = gap / spread, 1 / event["noise_multiplier"]
    error = np.sqrt(4 / canaries + charged**2 / (2 * canaries))
    assert_z((estimate - charged) / error, f"GDP mu {estimate:.3f}, charged {charged:.3f}")


def gate_public_denominator(system: System) -> None:
    """The sum is divided by q x declared units, whoever took part and however many there are."""
    units, declared, q, rounds = 100, 150, 0.3, 40
    rows = np.stack([np.zeros(units), np.full(units, 10.0)], axis=1)
    run = system.run(
        workers=2,
        sources=system.units(rows, 2),
        declared_units=declared,
        update=coordinate_update(4),
        sampling_probability=q,
        noise_multiplier=0.05,
        rounds=rounds,
        block=rounds,
    )
    seen = observe(run)
    released = np.stack(seen.steps)  # gradients times the public denominator
    sizes = released[:, 0] / CLIP_NORM  # the realised batch and noise of 0.05
    assert_z((sizes.mean() - q * units) / np.sqrt(q * (1 - q) * units / rounds), "batch size")
    squares = float((sizes - q * units) @ (sizes - q * units)) / (q * (1 - q) * units)
    assert_dispersion(squares, rounds, "variance of the batch size in the released sums")
    np.testing.assert_allclose(released, np.stack(seen.noisy), rtol=1e-5, atol=1e-5)


def gate_empty_batch(system: System) -> None:
    """A round without units takes a noisy step, and is charged."""
    run = system.run(workers=2, rounds=5, block=5, sampling_probability=NOBODY)
    seen = observe(run)
    assert len(seen.sums) == len(seen.steps) == 5, "a round without units was left out"
    assert not np.any(seen.sums), "somebody took part"
    assert all(np.abs(step).min() > 0 for step in seen.steps), "a round without units has no noise"
    assert run.entry().committed_rounds == 5
    before, _ = load_checkpoint(
        run.folder / "initial.safetensors", run_id=RUN_ID, stage="pretraining"
    )
    assert np.abs(run.parameters() - before["parameters"].numpy()).min() > 0


def gate_bad_units(system: System) -> None:
    """Units that are not finite change nothing that can be seen, and no parameter."""
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(40, 5))
    poisoned = rows.copy()
    poisoned[0], poisoned[7, 2], poisoned[13, 1], poisoned[22] = np.nan, np.inf, -np.inf, 3e38
    hopeless = np.full_like(rows, np.nan)
    shown = []
    for table in (rows, poisoned, hopeless):
        run = system.run(
            workers=2,
            rounds=8,
            block=4,
            copies=2,
            declared_units=40,
            sampling_probability=1.0,
            sources=system.units(table, 2),
        )
        with np.errstate(all="warn"):
            shown.append(_what_an_onlooker_sees(run))
        tensors, _ = load_checkpoint(
            run.folder / "rounds.safetensors", run_id=RUN_ID, stage="rounds"
        )
        for name, tensor in tensors.items():
            assert bool(torch.isfinite(tensor).all()), f"{name} is not finite"
    assert shown[0] == shown[1] == shown[2], f"a bad unit can be seen: {shown}"


def _what_an_onlooker_sees(run: GateRun) -> dict[str, Any]:
    """Run all rounds; return what is printed, logged, warned of, shown, counted and stored."""
    rounds = RoundsConfig(rounds=run.rounds, block_rounds=run.block, spare=run.spare)
    plan = RoundPlan(
        units=UnitCount(value=run.declared_units, source="declared"),
        sampling_probability=run.sampling_probability,
        config=rounds,
        budget=PrivacyBudget(epsilon=40.0, delta=1e-5, unit="transition"),
        mechanism=run.mechanism,
        accountant="rdp",
    )
    progress: list[tuple[Any, ...]] = []
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    try:
        with (
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(text),
            warnings.catch_warnings(record=True) as caught,
            run.server(LocalExecutor()) as server,
        ):
            warnings.simplefilter("always")
            run_rounds(server, plan, progress=lambda *facts: progress.append(facts))
    except Exception as error:
        raise AssertionError(f"a unit's badness raised {error!r}") from error
    finally:
        logging.getLogger().removeHandler(handler)
    _, state = load_checkpoint(run.folder / "rounds.safetensors", run_id=RUN_ID, stage="rounds")
    sizes = {path.name: path.stat().st_size for path in run.folder.iterdir()}
    return {
        "text": text.getvalue(),
        "warnings": [str(warning.message) for warning in caught],
        "progress": progress,
        "state": replace(state, block_nonce=""),
        "entry": replace(run.entry(), created=""),
        "sizes": sizes,
    }
