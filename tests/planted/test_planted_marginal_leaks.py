"""Every planted leak of a whole run of marginals is seen by the gate on what may leave."""

from pathlib import Path

import pytest

from distributed_privrl.experiments import judging
from distributed_privrl.marginals import belief
from tests.gates.marginal_leaks import gate_nothing_leaves, rare_run
from tests.marginals.programs import chained
from tests.planted import marginal_bugs
from tests.planted.marginal_bugs import Plant

CASES: dict[str, tuple[Plant, str, str]] = {
    "exact counts are kept": (
        marginal_bugs.checkpoint_of_exact_counts,
        "marginals",
        "marginals.safetensors holds exact counts",
    ),
    "exact counts among the noisy": (
        marginal_bugs.exact_counts_among_the_noisy,
        "marginals_j",
        "marginals.safetensors holds exact counts",
    ),
    "parts of exact counts are kept": (
        marginal_bugs.parts_of_exact_counts_are_kept,
        "marginals",
        "marginals.safetensors holds exact counts",
    ),
    "bounds of the rows": (
        marginal_bugs.bounds_of_the_rows,
        "marginals",
        "an argument of a worker holds bytes of sensitive rows",
    ),
    "scores are logged": (marginal_bugs.scores_are_logged, "marginals", "a run logs nothing"),
    "scores are sent": (
        marginal_bugs.scores_are_sent,
        "marginals_j",
        "an argument of a worker holds scores",
    ),
    "real rows among the drawn": (
        marginal_bugs.real_rows_among_the_drawn,
        "marginals",
        "main_data.hdf5 holds bytes of sensitive rows",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_leak_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, method, message = CASES[name]
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)  # no leak is planted there
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate_nothing_leaves(rare_run(tmp_path, method))
