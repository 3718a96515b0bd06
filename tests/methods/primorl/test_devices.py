"""PriMORL and MOPO on a GPU: what goes there, what comes back, and the refusal without one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.mopo import MinibatchTrainer
from distributed_privrl.methods.primorl.policy_training import PolicyTrainer, trained_policy
from distributed_privrl.privacy.noise import lattice_granularity
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.devices import GPU, Recorder, check_refused_without_gpu, recorded
from tests.worlds.elsewhere import STAND_IN
from tests.worlds.swings import Swings

SMALL = {
    "training__rounds": 2,
    "training__policy__steps": 4,
    "training__policy__horizon": 20,
    "evaluation": {"every": 4, "episodes": 0},
    "runtime__checkpoint_steps": 2,
}
METHODS: dict[str, dict[str, Any]] = {
    "primorl": {},
    "mopo": {"method": "mopo", "privacy__epsilon": None, "training__expected_batch_size": 64},
}


@pytest.fixture(scope="module", params=METHODS)
def started(
    request: pytest.FixtureRequest, master: DatasetStore, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    """Run a method that asks for GPUs; return what it started."""
    world = Swings(tmp_path_factory.mktemp("recorded"), master)
    return recorded(world, **SMALL, **METHODS[request.param])


def test_a_run_on_gpus_sends_everything_heavy_there(started: Recorder) -> None:
    models = MinibatchTrainer if MinibatchTrainer in started.specs else LocalUpdateWorker
    assert started.devices == {models: {"cuda"}, PolicyTrainer: {"cuda"}}
    assert (ParameterServer in started.specs) == (models is LocalUpdateWorker)


def assert_alike(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], device: str
) -> None:
    """The stand-in computes as the CPU does; a GPU rounds otherwise, from the same draws."""
    tolerance = 0.0 if device == STAND_IN else 1e-3
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert values.device.type == "cpu"
        torch.testing.assert_close(
            values, wanted[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("started", ["mopo"], indirect=True)  # its batches have recorded rows, too
def test_the_policy_learns_on_its_device_what_it_learns_on_a_cpu(
    started: Recorder, tmp_path: Path, device: str
) -> None:
    """A rollout, gradient steps, a checkpoint that the CPU goes on from, and the policy."""
    tensors = []
    for first in (device, "cpu"):
        folder = tmp_path / first
        folder.mkdir()
        spec = replace(started.specs[PolicyTrainer], device=first, folder=folder)
        trainer = PolicyTrainer(spec)
        trainer.advance(2)
        kept = [*trainer._trainer.networks.parameters(), trainer._trainer._buffer._rows]
        kept += [trainer._trainer._observations, *trainer._model.model.ensemble.parameters()]
        assert {tensor.device.type for tensor in kept} == {first}
        resumed = PolicyTrainer(replace(spec, device="cpu"))
        assert resumed.progress() == 2
        resumed.advance(1)
        assert trainer.advance(2) == 4
        assert PolicyTrainer(spec).progress() == 4
        assert np.isfinite(trained_policy(spec).act(np.zeros((3, 3)))).all()
        tensors.append(load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="policy")[0])
    assert_alike(*tensors, device)


@pytest.mark.parametrize("started", ["mopo"], indirect=True)
def test_minibatches_are_learnt_on_their_device(
    started: Recorder, tmp_path: Path, device: str
) -> None:
    tensors = []
    for first in (device, "cpu"):
        spec = replace(
            started.specs[MinibatchTrainer],
            device=first,
            checkpoint=tmp_path / f"{first}.safetensors",
        )
        trainer = MinibatchTrainer(spec)
        assert trainer.advance(2) == 2
        kept = trainer._optimiser.vector, trainer._rows, *trainer._ensemble.parameters()
        assert {tensor.device.type for tensor in kept} == {first}
        assert MinibatchTrainer(spec).progress() == 2
        tensors.append(load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="rounds")[0])
    assert_alike(*tensors, device)


@pytest.mark.parametrize("started", ["primorl"], indirect=True)
@pytest.mark.parametrize("projection", ["batch", "end"])
def test_clipped_sums_of_a_device_are_on_the_lattice_and_those_of_the_kernel(
    started: Recorder, device: str, projection: Any
) -> None:
    """Also without the unit that is not finite, which adds nothing and moves no other one."""
    update = started.specs[LocalUpdateWorker].local_update
    update = replace(update, config=replace(update.config, projection=projection, batch_size=4))
    width = 1 + max(*update.columns.inputs, *update.columns.targets)
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(5, 6, width)).astype(np.float32)
    rows[2, 1] = np.inf
    shape = (*rows.shape[:2], update.draw_count)
    batch = UnitBatch(
        rows=rows,
        valid=np.ones(rows.shape[:2], bool),
        draws=generator.normal(size=shape),
        counts=np.array([6, 3, 6, 1, 5]),
    )
    start = torch.nn.utils.parameters_to_vector(update.ensemble(torch.Generator()).parameters())
    start = start.detach().numpy()
    kernel, there = (replace(update, device=name)() for name in ("cpu", device))
    wanted, found = (one.clipped_sum(start, batch).copy() for one in (kernel, there))
    assert 0 < np.linalg.norm(wanted) <= 4 * update.clip_norm
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    steps = found / lattice_granularity(update.clip_norm, there.dimension)
    np.testing.assert_array_equal(steps, np.round(steps))
    batch.valid[2] = False
    np.testing.assert_array_equal(there.clipped_sum(start, batch), found)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_charged(world: Swings) -> None:
    check_refused_without_gpu(world)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_a_whole_run_on_a_gpu(world: Swings, method: str) -> None:
    result = world.run(**GPU, **SMALL, **METHODS[method])
    assert result.certificate.status == ("valid" if method == "primorl" else "non_private")
