"""The membership attack on marginals: the likelihood of a row's bins under the released model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.audit import Audit
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.steps import Steps
from distributed_privrl.methods.marginals.config import MarginalsConfig
from tests.marginals.programs import chained
from tests.worlds.audited import OTHERS, Audited
from tests.worlds.intake import BOUNDS, DATASET, Intake, admissions, config_values, write
from tests.worlds.overrides import parsed
from tests.worlds.world import World

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.mark.parametrize(("method", "steps"), [("marginals", 3), ("pgm", 2)])
def test_losses_are_those_of_the_model_that_rows_were_drawn_from(
    method: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where units were counted and bounds found, which the ledger tells again."""
    place, drawn_by = Intake(tmp_path, method=method), []
    draw = TableModel.transitions

    def spied(self: TableModel, count: int, random: np.random.Generator) -> Transitions:
        drawn_by.append(self)
        return draw(self, count, random)

    monkeypatch.setattr(TableModel, "transitions", spied)
    asked = {"epsilon": 20.0, "search": str(place.bounds), "parts": ["observation"]}
    config = place.config(data__units={"epsilon": 1.0}, data__bounds=asked, privacy__epsilon=26.0)
    _, context = place.finish(config, monkeypatch)
    identity = inspect(place.store, DATASET, unit="patient").identity
    context = replace(context, fingerprint=identity)
    entries = context.ledger.entries()
    attack = method_named(method).open_attack(config, context)
    assert attack is not None
    assert (attack.settings, attack.rounds) == (("negative log-likelihood",), steps)
    rows = admissions(50, seed=8)
    rows.observations[7, 0] = np.nan
    losses = attack.losses(rows)
    model = drawn_by[-1]
    field, coded = model.field, model.columns.coded(Steps(rows))
    counts = np.array([(rows.unit_ids == unit).sum() for unit in rows.unit_ids])
    coded = coded.of_units(model.columns, counts)
    assert np.unique(coded.cells[:, -1]).size > 1, "all units are of one size"
    bins = [shape.bins[coded.cells[:, i]] for i, shape in enumerate(model.shapes)]
    logs, normaliser = np.zeros(50), np.zeros(field.sizes)
    for clique, values in field.potentials.items():
        logs += values[tuple(bins[i] for i in clique)]
        shape = [size if i in clique else 1 for i, size in enumerate(field.sizes)]
        normaliser = normaliser + values.reshape(shape)
    expected = np.log(np.exp(normaliser).sum()) - logs
    assert losses.shape == (50, 1)
    assert np.flatnonzero(np.isnan(losses[:, 0])).tolist() == [7]
    np.testing.assert_allclose(np.delete(losses[:, 0], 7), np.delete(expected, 7), rtol=1e-9)
    assert context.ledger.entries() == entries
    context.ledger.close()


MEMBERS = 40


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    """40 members, 40 others, a model without privacy and one with epsilon 1."""
    place = Audited(tmp_path_factory.mktemp("audit"), BOUNDS)
    for dataset, seed in ((DATASET, 1), (OTHERS, 2)):
        write(place.store, dataset, scattered(seed))
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belief, "estimated", chained)
        for name, epsilon in (("open", None), ("private", 1.0)):
            place.train(name, configuration(place, epsilon, f"audit/{name}-v0"), key=1, anyway=True)
            found[name] = place.audit(name, place.folder / f"{name}-audit")
    return found


def scattered(seed: int) -> Transitions:
    """Return rows whose numbers have nothing to do with each other: a model can but memorise."""
    source = np.random.default_rng(seed)
    return Transitions(
        observations=np.stack([source.uniform(0, 10, MEMBERS), source.integers(0, 5, MEMBERS)], 1),
        actions=source.integers(1, 4, MEMBERS),
        rewards=source.uniform(0, 1, MEMBERS),
        next_observations=np.stack(
            [source.uniform(0, 10, MEMBERS), source.integers(0, 5, MEMBERS)], 1
        ),
        terminated=np.zeros(MEMBERS, bool),
        truncated=np.zeros(MEMBERS, bool),
        unit_ids=1000 * seed + np.arange(MEMBERS),
    )


def configuration(place: World, epsilon: float | None, output: str) -> Any:
    values = config_values(
        place.bounds,
        data__units=MEMBERS,
        privacy__epsilon=epsilon,
        privacy__delta=1e-3,
        model__bins=12,
        model__cells=2000,
        model__rows_per_unit=1,
        training__steps=1,
        training__tables=4,
        output__dataset=output,
    )
    return parsed(values, MarginalsConfig)


def test_it_fires_on_a_model_that_memorises_and_not_on_a_private_one(
    audits: dict[str, Audit],
) -> None:
    attacked = {name: audit.membership for name, audit in audits.items()}
    for one in attacked.values():
        assert one is not None
        assert not isinstance(one, str), one
        assert (one.figures.members, one.figures.non_members) == (MEMBERS, MEMBERS)
        assert one.rounds == 2
    assert attacked["open"].figures.fires()
    assert attacked["open"].figures.area.value > 0.8
    assert not attacked["private"].figures.fires()
    assert 0.25 < attacked["private"].figures.area.value < 0.75


def test_there_is_no_canary_round_of_counts(audits: dict[str, Audit]) -> None:
    assert all(str(audit.canary).startswith("not applicable") for audit in audits.values())
