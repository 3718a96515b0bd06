"""A survey as it is, through a private run and out again, with its own texts and gaps."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import yaml

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.exporting import export
from distributed_privrl.data.importing import from_table
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.run import check_datasets
from distributed_privrl.marginals import belief
from distributed_privrl.methods.marginals.config import MarginalsConfig
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod
from distributed_privrl.methods.privorl.config import PrivorlNConfig
from tests.data.real_tables import NAMES, SURVEY, panel
from tests.marginals.programs import chained
from tests.worlds.overrides import parsed
from tests.worlds.world import World

BOUNDS = """
observation: {low: [100, 15], high: [220, 80]}
reward: {low: 30, high: 150, step: 1}
"""


class Survey(World):
    """The survey, a ledger, and a place for runs."""

    dataset, key = "school/survey-v0", 3
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 50.0, "delta": 1e-3, "unit": "transition"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, BOUNDS)
        from_table(
            panel("MASS/survey"), yaml.safe_load(SURVEY), dataset=self.dataset, store=self.store
        )

    def config(self, of: Any = MarginalsConfig, **changes: Any) -> Any:
        data = {"sensitive": self.dataset, "unit": "transition", "units": 237}
        values = {
            "method": "marginals",
            "data": data | {"bounds": str(self.bounds)},
            "privacy": {"epsilon": 8.0, "delta": 1e-4},
            "output": {"dataset": "school/private-v0", "size": 400},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parsed(values | changes, of)


def test_a_survey_goes_in_and_a_private_one_with_its_texts_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    world = Survey(tmp_path).budget()
    model = {"bins": 6, "cells": 200, "draws": 500}
    config = world.config(model=model, training={"steps": 2, "tables": 3})
    world.start(config, insecure_key=world.key)
    mine, released = world.store.info(world.dataset), world.store.info("school/private-v0")
    assert released.declared == mine.declared
    assert released.observation_space == mine.observation_space
    assert not released.has_successors
    rows = world.store.read_transitions(released.id, unit="transition")
    assert rows.terminated.all()
    for start, stop in ((0, 3), (3, 6), (6, 9), (9, 14)):
        assert (rows.observations[:, start:stop].sum(axis=1) == 1).all()
    out = tmp_path / "private.csv"
    export(world.store, released.id, "csv", out)
    table = pd.read_csv(out, keep_default_na=False, na_values=[""])
    assert list(table) == NAMES
    declared = yaml.safe_load(SURVEY)["kinds"]
    for name, kind in declared.items():
        if "values" in kind:
            values = set(table[name].dropna())
            assert values <= set(map(str, kind["values"])), name
            assert len(values) > 1, name
    assert table["Exer"].notna().all(), "no category of its own was declared for its gaps"
    assert 0 < table["Height"].isna().mean() < 0.5, "28 of 237 gave no height"
    assert table["Height"].dropna().between(100, 220).all()
    counts = json.loads((tmp_path / "run" / "certificate.json").read_text())["stages"]
    assert len(counts) == 1


def test_methods_that_learn_what_follows_refuse_it_before_anything_is_held(tmp_path: Path) -> None:
    world = Survey(tmp_path).budget()
    config = world.config(
        PrivorlNConfig, method="privorl_n", training={"pretraining": {"steps": 0}}
    )
    with pytest.raises(ConfigError, match=r"nothing follows the rows .*: take method marginals"):
        world.start(config, insecure_key=world.key)
    assert not list(world.ledger.entries())
    assert TrajectoryMarginalsMethod.needs_successors


def test_public_rows_mean_the_same_by_their_numbers(tmp_path: Path) -> None:
    world = Survey(tmp_path)
    schemas = {
        "same": SURVEY,
        "names": SURVEY.replace("Sex", "Gender"),
        "order": SURVEY.replace("[Freq, None, Some]", "[Some, None, Freq]"),
        "flag": SURVEY.replace("[Female, Male]", "[Male, Female]"),
    }
    frame = panel("MASS/survey").head(50)
    frame = frame.assign(Gender=frame["Sex"], Pulse=frame["Pulse"] + 1)
    for name, text in schemas.items():
        from_table(frame, yaml.safe_load(text), dataset=f"open/{name}-v0", store=world.store)
        data = world.config().data.model_copy(update={"public": (f"open/{name}-v0",)})
        config = world.config().model_copy(update={"data": data})
        if name in ("same", "names"):
            check_datasets(config, world.store)
            continue
        with pytest.raises(ConfigError, match="declare other categories, dates or flags"):
            check_datasets(config, world.store)


def test_public_rows_have_successors_where_the_sensitive_ones_have(tmp_path: Path) -> None:
    world = Survey(tmp_path)
    info = world.store.info(world.dataset)
    world.store.write_transitions(
        "open/followed-v0",
        world.store.read_transitions(world.dataset, unit="transition"),
        observation_space=info.observation_space,
        action_space=info.action_space,
        layout="transitions",
    )
    data = world.config().data.model_copy(update={"public": ("open/followed-v0",)})
    config = world.config().model_copy(update={"data": data})
    with pytest.raises(ConfigError, match="something follows the rows of open/followed-v0 or of"):
        check_datasets(config, world.store)
