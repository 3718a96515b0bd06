"""Where tensors are computed, and the check that such a device is there before anything is paid."""

import torch

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor


def device_of(runtime: RuntimeConfig) -> str:
    """Return torch's name of the device that workers compute on: ``cpu`` or ``cuda``."""
    return "cuda" if runtime.gpus_per_worker > 0 else "cpu"


class DeviceProbe:
    """Says whether torch finds a device in a worker's process.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def finds_device(self) -> bool:
        """Return whether tensors can be made there."""
        return self._device == "cpu" or torch.cuda.is_available()


def check_own_device(runtime: RuntimeConfig) -> None:
    """Refuse a run that computes in the process that starts it, where that finds no GPU.

    Raises:
        ConfigError: torch sees none here.
    """
    if not DeviceProbe(device_of(runtime)).finds_device():
        raise ConfigError(
            f"runtime.gpus_per_worker={runtime.gpus_per_worker:g}, but torch sees no GPU in the"
            " process that starts the run, which trains the language model: set it to 0, or start"
            " the run on a machine that has one"
        )


def check_device(
    runtime: RuntimeConfig, executor: Executor, *, asked: str = "runtime.gpus_per_worker"
) -> None:
    """Refuse a run whose workers would find no GPU; asks them where they will live.

    Args:
        runtime: says how many workers there are and whether they compute on GPUs.
        executor: gives a worker's process what the configuration reserves for it.
        asked: what the user set.

    Raises:
        ConfigError: torch sees no GPU in a worker's process.
    """
    device = device_of(runtime)
    if device == "cpu":
        return
    probes = executor.start(DeviceProbe, [device] * runtime.most_workers, repeat_lost_calls=True)
    try:
        found = probes.call("finds_device")
    finally:
        probes.close()
    if not all(found):
        raise ConfigError(
            f"{asked}={runtime.gpus_per_worker:g}, but torch sees no GPU in"
            f" {found.count(False)} of {len(found)} workers: set it to 0, or install the driver and"
            " a torch built for it"
        )
