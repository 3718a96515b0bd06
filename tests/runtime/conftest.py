"""What tests of the runtime share."""

from collections.abc import Iterator

import pytest

from distributed_privrl.core.executor import Executor
from tests.gates.around_ray import Dashboard
from tests.runtime.heads import dashboard_beside


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, ray_executor: Executor
) -> Iterator[Dashboard]:
    """Yield a dashboard beside this process's Ray, which has none."""
    with dashboard_beside(tmp_path_factory.mktemp("dashboard") / "log") as found:
        yield found
