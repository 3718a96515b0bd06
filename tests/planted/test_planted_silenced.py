"""Sensitive rows change the sums of private rounds and nothing else, and planted bugs are seen."""

from pathlib import Path

import pytest

from distributed_privrl.data.store import DatasetStore
from tests.gates.silenced import METHODS, gate_rows_change_sums_alone, other_rows, silent_run
from tests.planted import silenced_bugs
from tests.planted.round_bugs import Plant

BUGS: dict[str, tuple[str, Plant, str]] = {
    "parameters at the start": (
        "primorl",
        silenced_bugs.start_from_rows,
        "rows change the parameters at the start",
    ),
    "order by the number of rows": (
        "privorl_n",
        silenced_bugs.rolled_by_the_number_of_rows,
        "of the release rows change .*, or their order",
    ),
    "order of sensitive rows": (
        "privorl_n",
        silenced_bugs.in_the_order_of_sensitive_rows,
        "of the release rows change .*, or their order",
    ),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[DatasetStore, ...]]:
    """Return for each method a store, and one of other rows."""
    made: dict[str, tuple[DatasetStore, ...]] = {}
    for name, method in METHODS.items():
        folder = tmp_path_factory.mktemp(name)
        master = method.make(folder / "master")
        made[name] = (master, other_rows(master, method.dataset, folder / "other"))
    return made


def gate(method: str, stores: tuple[DatasetStore, ...], folder: Path) -> None:
    outcomes = []
    for name, store in zip(("one", "other"), stores, strict=True):
        (folder / name).mkdir()
        outcomes.append(silent_run(method, folder / name, store))
    gate_rows_change_sums_alone(*outcomes)


@pytest.mark.parametrize("method", METHODS)
def test_rows_change_the_sums_of_rounds_alone(
    method: str, tmp_path: Path, stores: dict[str, tuple[DatasetStore, ...]]
) -> None:
    gate(method, stores[method], tmp_path)


@pytest.mark.parametrize("bug", BUGS)
def test_the_gate_sees_the_bug(
    bug: str,
    tmp_path: Path,
    stores: dict[str, tuple[DatasetStore, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, plant, what_it_says = BUGS[bug]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=what_it_says):
            gate(method, stores[method], tmp_path)
