"""What a sensitive dataset says of itself leaves with no method's run."""

from pathlib import Path

import pytest

from distributed_privrl.evaluation import two_sample
from distributed_privrl.experiments.registry import METHODS
from distributed_privrl.marginals import belief
from tests.gates.metadata import gate_metadata
from tests.gates.metadata_cases import CASES
from tests.marginals.programs import chained

UNPROTECTED = {"mopo"}
"""Methods that are never private: everything that they make lies in ``private/``."""


def test_there_is_a_case_for_every_method() -> None:
    assert set(CASES) == set(METHODS) - UNPROTECTED


@pytest.mark.parametrize("method", CASES)
def test_no_canary_of_the_metadata_leaves(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Metadata has no way into a model of noisy counts, nor into trees that tell rows apart.
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(two_sample, "area", lambda *_, **__: 0.75)
    prepare, make = CASES[method]
    (tmp_path / "master").mkdir()
    gate_metadata(prepare(tmp_path, make(tmp_path / "master")))
