"""What a sensitive dataset says of itself leaves with no method's run."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.numpy import save_file

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation import plots, two_sample
from distributed_privrl.experiments import reports
from distributed_privrl.experiments.registry import METHODS
from distributed_privrl.marginals import belief
from tests.gates.leaks import holds_words
from tests.gates.metadata import (
    Canaries,
    gate_metadata,
    units_of,
    words_of_rows,
    write_words,
)
from tests.gates.metadata_cases import CASES
from tests.marginals.programs import chained

Make = Callable[[Path], DatasetStore]
UNPROTECTED = {"mopo"}
"""Methods that are never private: everything that they make lies in ``private/``."""
RELEASES_ROWS = {"expert"}
"""Methods that release stable prefixes of sensitive trajectories as they are."""
WITHOUT_WORDS = {"dprft", "dp_fine_tuning", "apvi", "vapvi", "policy_value"}
"""Methods whose rows are texts, categories or whole numbers here: other gates look for those."""
WITH_UNITS = {
    *("marginals", "pgm", "privsyn", "pate_gan", "pre_pate_gan"),
    *("expert", "dprft", "dp_fine_tuning"),
}
"""Methods whose units have ids here that are met by chance nowhere."""
COMPARED = {"privorl_n", "privorl_j"}
"""Methods whose figures are drawn, and whose release is compared with the real rows.

One is of rows, one of trajectories. What is compared is the same for all, and lies in ``private/``;
what it might say is looked at here.
"""


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Make], DatasetStore]:
    """Return the store that a function makes, which is made once: cases copy it."""
    return functools.cache(lambda make: make(tmp_path_factory.mktemp("master")))


def test_there_is_a_case_for_every_method() -> None:
    assert set(CASES) == set(METHODS) - UNPROTECTED


def check_are_known(words: NDArray[np.uint64]) -> None:
    """Fail if the gate could not find a sensitive row or a unit among other bytes."""
    assert len(words) > 10
    assert holds_words(b"odd" + words[len(words) // 2].tobytes() + b"end", words)
    assert not holds_words(bytes(1000), words)


def test_words_of_a_figure_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", write_words)
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], label="canary1")
    axes.set(title="canary2", xlabel="canary3")
    axes.annotate("canary4 <", (0, 0))
    axes.legend()
    for image_format in ("svg", "png"):
        words = plots.render(figure, image_format)
        assert all(f"canary{one}".encode() in words for one in range(1, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_are_found_in_arrays(dtype: type, tmp_path: Path) -> None:
    planted = Canaries(numbers={"there": 4.25e17 + 2**40, "elsewhere": 7.5e17})
    values = np.array([0.5, planted.numbers["there"], 3], dtype)
    np.save(tmp_path / "values.npy", values)
    save_file({"flags": np.ones(3, bool), "values": values}, tmp_path / "values.safetensors")
    for path in tmp_path.iterdir():
        assert planted.found_in(path.read_bytes(), suffix=path.suffix) == {"there"}


@pytest.mark.parametrize("method", CASES)
def test_no_canary_of_the_metadata_leaves(
    method: str,
    tmp_path: Path,
    masters: Callable[[Make], DatasetStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Metadata has no way into a model of noisy counts, nor into trees that tell rows apart.
    if method not in COMPARED:
        monkeypatch.setattr(reports, "attempted_sections", lambda *_: [])
        monkeypatch.setattr(Figure, "savefig", write_words)
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(two_sample, "area", lambda *_, **__: 0.75)
    prepare, make = CASES[method]
    case = prepare(tmp_path, masters(make))
    if method not in RELEASES_ROWS | WITHOUT_WORDS:
        check_are_known(words_of_rows(case.store, case.sensitive))
    if method in WITH_UNITS:
        check_are_known(units_of(case.store, case.sensitive))
    gate_metadata(case, releases_rows=method in RELEASES_ROWS)
