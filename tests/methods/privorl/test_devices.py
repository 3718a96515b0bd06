"""PrivORL-n on a GPU: what goes there, what comes back, and the refusal where there is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl import pretraining as pretraining_module
from distributed_privrl.methods.privorl.curiosity import NovelUpdateFactory
from distributed_privrl.methods.privorl.pretraining import Pretrainer, PretrainerSpec
from distributed_privrl.methods.privorl.release import Sampler, SamplerSpec, read_chunks
from distributed_privrl.methods.privorl.row_model import RowDrawer, RowSynthesizer
from distributed_privrl.methods.privorl.transitions import TransitionRows
from distributed_privrl.methods.privorl.update import DiffusionUpdate, build_denoiser
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.stages.coding import public_encoder
from tests.worlds.devices import GPU, check_refused_without_gpu, recorded
from tests.worlds.mazes import Mazes, config, config_values, maze_store

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("datasets"))


@pytest.mark.parametrize("device", DEVICES)
def test_pretraining_computes_on_its_device_and_saves_for_any(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(pretraining_module, "CHECKPOINT_EVERY", 2)
    settings = config()
    encoder = public_encoder(settings, store)
    spec = PretrainerSpec(
        run_id="run",
        root=str(store.root),
        public=settings.data.public,
        rows=TransitionRows(encoder=encoder.to_json()),
        synthesizer=RowSynthesizer(model=settings.model, row_width=encoder.width),
        config=settings.training.pretraining,
        seed=0,
        checkpoint=tmp_path / "pretrained.safetensors",
        device=device,
    )
    first = Pretrainer(spec)
    first.advance(2)
    moved = [first._optimiser.vector, *first._curiosity.distillation.parameters()]
    assert {tensor.device.type for tensor in moved} == {device}
    resumed = Pretrainer(replace(spec, device="cpu"))
    assert resumed.progress() == 2
    assert torch.equal(resumed._optimiser.vector, first._optimiser.vector.cpu())
    resumed.advance(2)
    assert Pretrainer(spec).advance(2) == 6
    tensors, _ = load_checkpoint(spec.checkpoint, run_id="run", stage="pretraining")
    for tensor in tensors.values():
        assert tensor.isfinite().all()
        assert tensor.device.type == "cpu"


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_sampled_on_the_device_and_written_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    settings = config()
    network = build_denoiser(settings.model, row_width=6, seed=1)
    vector = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    checkpoint = tmp_path / "rounds.safetensors"
    state = CheckpointState(run_id="run", round_index=1, stage="rounds")
    save_checkpoint(checkpoint, {"ema": vector}, state)
    spec = SamplerSpec(
        run_id="run",
        checkpoint=checkpoint,
        pretrained=Path("none"),
        folder=tmp_path / "rows",
        synthesizer=RowSynthesizer(model=settings.model, row_width=6),
        drawer=RowDrawer(
            model=settings.model, config=settings.training.sampling, row_width=6, rows=100
        ),
        seed=0,
        index=0,
        count=1,
        device=device,
    )
    where: list[str] = []
    sampler = Sampler(spec)
    sampler._network.register_forward_pre_hook(lambda _, given: where.append(given[0].device.type))
    while sampler.advance():
        pass
    rows = np.concatenate(list(read_chunks(spec.folder, 2)))
    assert set(where) == {device}
    assert rows.shape == (100, 6)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert rows.std() > 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_novel_samples_give_their_vectors_from_either_device(device: str) -> None:
    settings = config()
    update = DiffusionUpdate(
        synthesizer=RowSynthesizer(model=settings.model, row_width=5),
        seed=0,
        clip_norm=1.0,
        micro_batch_rows=8,
        device=device,
    )
    novel = NovelUpdateFactory(
        update=update,
        samples=4,
        candidates=8,
        copies=1,
        sampler_steps=2,
        seed=0,
        pretrained=Path("none"),
        run_id="run",
    )()
    network = build_denoiser(settings.model, row_width=5, seed=1)
    vector = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()
    total = novel.vector_sum(vector, 0)
    assert 0 < np.linalg.norm(total) <= 4
    novel.restore({name: value.cpu() for name, value in novel.tensors().items()})
    assert np.isfinite(novel.vector_sum(vector, 1)).all()


def with_output(name: str, **training: Any) -> dict[str, Any]:
    values = config_values()
    output = values["output"] | {"dataset": f"test/{name}-v0", "size": 70}
    return {"output": output, "training": values["training"] | training}


def test_a_run_on_gpus_sends_everything_heavy_there(store: DatasetStore, tmp_path: Path) -> None:
    changes = with_output("recorded", curiosity_rate=0.25)
    executor = recorded(Mazes(tmp_path, store).budget(), **changes)
    assert executor.devices == {
        Pretrainer: {"cuda"},
        LocalUpdateWorker: {"cuda"},
        Sampler: {"cuda"},
        ParameterServer: {"cpu"},  # its novel samples
    }
    # Only what reserves nothing is a service; the probes and the pre-trainer take a worker's place.
    assert executor.services == {ParameterServer}


@pytest.mark.parametrize("units", [3000, {"epsilon": 0.5}])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_charged(
    store: DatasetStore, tmp_path: Path, units: Any
) -> None:
    check_refused_without_gpu(Mazes(tmp_path, store).budget(), data__units=units)


@pytest.mark.gpu
def test_a_whole_run_on_a_gpu(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    world = Mazes(tmp_path, store).budget()
    result = world.run(**GPU, **with_output("on-gpu", curiosity_rate=0.25))
    assert result.certificate.status == "valid"
    assert len(world.store.read_transitions("test/on-gpu-v0", unit="transition")) == 70
