"""The expert level on a GPU: what goes there, what comes back, and the refusal without one."""

import numpy as np
import pytest

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert.config import LocalExpertConfig
from distributed_privrl.methods.expert.update import AgentUpdate
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.crowd import AGENTS, Crowd, facts_of, units
from tests.worlds.devices import GPU, check_refused_without_gpu, recorded


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("federated", [None, LocalExpertConfig(epochs=2, batch_size=3)])
def test_clipped_sums_of_a_device_are_those_of_the_cpu(
    master: DatasetStore, device: str, agent: str, federated: LocalExpertConfig | None
) -> None:
    """One expert's row that is not finite makes that expert null there, too."""
    facts = facts_of(master, agent)
    batch = units(facts, master, 5, 4)
    batch.rows[2, 1] = np.inf
    parameters = FlatParameters(facts.networks())
    start = np.concatenate([parameters.numpy(), parameters.fixed_numpy()])
    sums = {}
    for name in ("cpu", device):
        update = AgentUpdate(
            facts=facts, clip_norm=0.5, micro_batch_rows=128, federated=federated, device=name
        )()
        sums[name] = update.clipped_sum(start, batch).copy()
        batch.valid[2] = False
        np.testing.assert_array_equal(update.clipped_sum(start, batch), sums[name])
        batch.valid[2] = True
    assert 0 < np.linalg.norm(sums["cpu"]) <= 4 * 0.5
    np.testing.assert_allclose(sums[device], sums["cpu"], rtol=0, atol=1e-5)


def test_a_run_on_gpus_sends_its_experts_there(world: Crowd) -> None:
    assert recorded(world, training__rounds=2).devices == {LocalUpdateWorker: {"cuda"}}


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_charged(world: Crowd) -> None:
    check_refused_without_gpu(world)


@pytest.mark.gpu
def test_a_whole_run_on_a_gpu(world: Crowd) -> None:
    assert world.run(training__rounds=2, key=None, **GPU).certificate.status == "valid"
