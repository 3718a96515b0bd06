"""Parts of a row that public data alone teach: no private round computes, noises or moves them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.experiments.registry import method_named, parse_config, plan_run
from distributed_privrl.methods.privorl.config import PrivorlArConfig, PrivorlArJConfig
from distributed_privrl.methods.privorl.curiosity import NovelUpdate
from distributed_privrl.methods.privorl.fine_tuning import START
from distributed_privrl.methods.privorl.release import PRETRAINED, TRAINED, Sampler
from distributed_privrl.methods.privorl.step_model import StepSynthesizer
from distributed_privrl.methods.privorl.trajectories import fragment_synthesizer
from distributed_privrl.methods.privorl.update import DiffusionUpdate, private_network
from distributed_privrl.models.autoregressive import AutoregressiveNetwork
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.overrides import parsed
from tests.worlds.walks import SENSITIVE, ar_config, config_values, walk_store, walks
from tests.worlds.world import World

MODEL = {"bins": 8, "hidden": [8], "column_frequencies": 1}
PARTS_NAMES = ("next_observation", "terminal")
PARTS = {"public_parts": list(PARTS_NAMES)}


def settings_of(method: str, curiosity: float = 0.0) -> PrivorlArConfig | PrivorlArJConfig:
    training = config_values()["training"] | {"sampling": {}, "curiosity_rate": curiosity}
    if method == "privorl_ar_j":
        return ar_config(model=MODEL | PARTS | {"horizon": 8}, training=training)
    del training["max_fragments_per_unit"]
    values = config_values(method=method, model=MODEL | PARTS, training=training)
    values["data"] = values["data"] | {"unit": "transition", "units": 2000, "max_length": None}
    return parsed(values, PrivorlArConfig)


@pytest.fixture(scope="module")
def synthesizer(tmp_path_factory: pytest.TempPathFactory) -> StepSynthesizer:
    store = walk_store(tmp_path_factory.mktemp("walks"))
    settings = settings_of("privorl_ar_j")
    assert isinstance(settings, PrivorlArJConfig)
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, StepSynthesizer)
    return made


def parts_of(network: AutoregressiveNetwork) -> list[str]:
    return [one.part for one in network.bins.variables]


def batch(synthesizer: StepSynthesizer) -> UnitBatch:
    found = synthesizer.fragments.encode(walks(6, seed=5))
    shape = (len(found.rows), 1)
    return UnitBatch(
        rows=found.rows[:, None], valid=np.ones(shape, bool), draws=np.zeros((*shape, 0))
    )


def test_every_variable_knows_its_part(synthesizer: StepSynthesizer) -> None:
    assert parts_of(synthesizer.build(0)) == [
        "observation",
        "observation",
        "action",
        "reward",
        "next_observation",
        "next_observation",
        "terminal",
        "terminal",
    ]


def test_a_unit_s_vector_is_the_gradient_of_the_other_parts_alone(
    synthesizer: StepSynthesizer,
) -> None:
    update = DiffusionUpdate(synthesizer=synthesizer, seed=0, clip_norm=None, micro_batch_rows=8)()
    network = synthesizer.build(0)
    fixed = {f"parts.{i}." for i, part in enumerate(parts_of(network)) if part in PARTS_NAMES}
    whole = GradientLocalUpdate(
        module=network, row_loss=synthesizer.row_loss, clip_norm=None, micro_batch_rows=8
    )
    slices = whole._flat.slices
    own = [part for name, part in slices.items() if not name.startswith(tuple(fixed))]
    assert 0 < len(own) < len(slices)
    before = FlatParameters(synthesizer.build(0)).numpy()
    expected = whole.clipped_sum(before, batch(synthesizer))
    trained = np.concatenate([before[part] for part in own])
    found = update.clipped_sum(trained, batch(synthesizer))
    assert update.dimension == len(trained) < len(before)
    np.testing.assert_allclose(
        found, np.concatenate([expected[part] for part in own]), rtol=1e-4, atol=1e-6
    )
    clipped = DiffusionUpdate(synthesizer=synthesizer, seed=0, clip_norm=0.01, micro_batch_rows=8)()
    one = batch(synthesizer)
    alone = UnitBatch(rows=one.rows[:1], valid=one.valid[:1], draws=one.draws[:1])
    norm = float(np.linalg.norm(clipped.clipped_sum(trained, alone)))
    assert 0.0099 < norm <= 0.01, "the whole norm is the other parts'"


def fixed_weights(network: torch.nn.Module) -> list[torch.Tensor]:
    """Return all weights of the parts that public data alone teach, none of the others."""
    assert isinstance(network, AutoregressiveNetwork)
    return [
        weight
        for index, part in enumerate(parts_of(network))
        if part in PARTS_NAMES
        for weight in network.parts[index].parameters()
    ]


@pytest.mark.parametrize(("method", "curiosity"), [("privorl_ar", 0.2), ("privorl_ar_j", 0.0)])
def test_a_run_keeps_what_public_data_taught(
    method: str, curiosity: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever draws has them as they were taught: samplers, the server's novel rows, the audit."""
    drawing: list[torch.nn.Module] = []
    for owner, name in ((Sampler, "_network"), (NovelUpdate, "_rows")):
        begun = owner.__init__

        def noted(mine: Any, spec: Any, *, begun: Any = begun, name: str = name) -> None:
            begun(mine, spec)
            found = getattr(mine, name)
            drawing.append(found if isinstance(found, torch.nn.Module) else found._network)

        monkeypatch.setattr(owner, "__init__", noted)
    store = walk_store(tmp_path / "datasets")
    settings = settings_of(method, curiosity)
    result, context = World(tmp_path).finish(settings, monkeypatch)
    public, _ = load_checkpoint(
        context.folder / PRETRAINED, run_id=context.run_id, stage="pretraining"
    )
    begun, _ = load_checkpoint(context.folder / START, run_id=context.run_id, stage="pretraining")
    trained, state = load_checkpoint(
        context.folder / TRAINED, run_id=context.run_id, stage="rounds"
    )
    assert state.round_index == 4
    assert len(begun["parameters"]) == len(trained["ema"]) < len(public["parameters"])
    assert not torch.equal(begun["parameters"], trained["parameters"])
    opened = method_named(settings.method).open_attack(settings, context)
    audited = opened._network
    assert isinstance(audited, AutoregressiveNetwork)
    taught = copy.deepcopy(audited).requires_grad_(True)
    FlatParameters(taught).load(public["parameters"])
    assert len(drawing) == settings.runtime.workers + (curiosity > 0)
    for network in (*drawing, audited):
        for mine, before in zip(fixed_weights(network), fixed_weights(taught), strict=True):
            assert torch.equal(mine, before)
    for index, part in enumerate(parts_of(audited)):
        mine, before = audited.parts[index][0].weight, taught.parts[index][0].weight
        assert torch.equal(mine, before) == (part in PARTS_NAMES), part
    assert result.directory.certificate.exists()
    rows = store.read_transitions(SENSITIVE, unit=settings.data.unit)
    losses = opened.losses(rows)
    for weight in fixed_weights(audited):
        weight.data.add_(1.0)
    np.testing.assert_array_equal(opened.losses(rows), losses)
    assert np.isfinite(losses).any()


def test_pre_training_teaches_all_parts(
    synthesizer: StepSynthesizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_store(tmp_path / "datasets")
    settings = settings_of("privorl_ar_j")
    _, context = World(tmp_path).finish(settings, monkeypatch)
    network = private_network(
        synthesizer, settings.seed, pretrained=context.folder / PRETRAINED, run_id=context.run_id
    )
    for mine, fresh in zip(network.parameters(), synthesizer.build(0).parameters(), strict=True):
        assert not torch.equal(mine, fresh)


def test_without_pre_training_or_with_nothing_left_to_learn_they_are_refused() -> None:
    settings = settings_of("privorl_ar")
    none = {**settings.training.model_dump(mode="json"), "pretraining": {"steps": 0}}
    values = settings.model_dump(mode="json") | {"training": none}
    with pytest.raises(ConfigError, match="need public pre-training"):
        plan_run(parse_config(values, source="test"))
    everything = ["observation", "action", "reward", "next_observation", "terminal"]
    values = settings.model_dump(mode="json")
    values["model"] = values["model"] | {"public_parts": everything}
    with pytest.raises(ConfigError, match="nothing is left to learn"):
        plan_run(parse_config(values, source="test"))
