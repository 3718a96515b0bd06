"""A device that methods compute on beside the CPU."""

from collections.abc import Iterator

import pytest

from tests.worlds.elsewhere import STAND_IN, elsewhere


@pytest.fixture(params=[STAND_IN, pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A stand-in for a GPU; with ``-m gpu`` a real one."""
    if request.param != STAND_IN:
        yield request.param
        return
    with elsewhere():
        yield STAND_IN
