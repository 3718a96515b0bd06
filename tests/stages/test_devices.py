"""Where tensors live: the check before anything is paid, and steps on a device of their own."""

from typing import Any

import pytest
import torch

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.devices import DeviceProbe, check_device, device_of
from distributed_privrl.updates.parameters import FlatParameters

ON_GPU = RuntimeConfig(workers=3, gpus_per_worker=0.5)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Fleet(LocalExecutor):
    """Workers of which the last sees no GPU."""

    def start(self, worker_cls: type, shards: Any, **_: Any) -> Any:
        assert worker_cls is DeviceProbe
        group = super().start(worker_cls, shards)
        for worker, found in zip(group._workers, (True, True, False), strict=True):
            worker.finds_device = lambda found=found: found
        return group


def test_a_gpu_is_asked_for_by_its_share() -> None:
    assert device_of(ON_GPU) == "cuda"
    assert device_of(RuntimeConfig()) == "cpu"


def test_workers_that_see_no_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_device(ON_GPU, LocalExecutor())
    with pytest.raises(ConfigError, match=r"gpus_per_worker=0\.5.*no GPU in 1 of 3 workers"):
        check_device(ON_GPU, Fleet())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU in 3 of 3 workers"):
        check_device(ON_GPU, LocalExecutor())
    check_device(RuntimeConfig(), Fleet())  # nobody is asked where no GPU is needed


def optimiser(device: str) -> ServerOptimiser:
    vector = torch.linspace(-1, 1, 8, device=device)
    return ServerOptimiser(vector, OptimiserConfig(schedule="cosine"), total_steps=9)


@pytest.mark.parametrize("device", DEVICES)
def test_an_optimiser_goes_on_from_a_checkpoint_of_the_cpu(device: str) -> None:
    first, second = optimiser("cpu"), optimiser(device)
    gradients = torch.linspace(-1, 2, 24).view(3, 8)
    for gradient in gradients[:2]:
        first.step(gradient.clone())
    second.restore({name: value.clone() for name, value in first.tensors().items()}, steps=2)
    first.step(gradients[2].clone())
    second.step(gradients[2].to(device))
    for name, expected in first.tensors().items():
        actual = second.tensors()[name]
        assert actual.device.type == device
        torch.testing.assert_close(actual.cpu(), expected)
    assert second._adam_steps.device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_flat_parameters_keep_the_module_on_its_device(device: str) -> None:
    module = torch.nn.Linear(3, 2).to(device)
    flat = FlatParameters(module)
    values = torch.linspace(0, 1, flat.dimension)
    flat.load(values.numpy())
    assert flat.vector.device.type == module.weight.device.type == device
    assert flat.numpy().tolist() == values.tolist()
    assert module(torch.ones(1, 3, device=device)).device.type == device
