"""A gate on a whole run of MOPO, which protects nobody: all that it learned stays in `private/`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.gates.leak_runs import Finished, watched_run
from tests.gates.leaks import scan_unprotected
from tests.worlds.unprotected_rarities import DATASET, UnprotectedRarities

PUBLIC = {"initial.safetensors"}
"""What lies in ``private/`` and was drawn from a public seed."""


def unprotected_run(folder: Path) -> Finished:
    """Run MOPO, watched; what it learned, and its figures of that, are secrets, too."""
    world = UnprotectedRarities(folder)
    run = watched_run(world, world.config(), world.secrets())
    figures = (*run.secrets.figures, *learned_figures(run.folder))
    secrets = replace(run.secrets, figures=figures, learned=learned_tensors(run.folder))
    return replace(run, secrets=secrets)


def learned_tensors(folder: Path) -> list[NDArray[Any]]:
    """Return the numbers of models, policy, optimisers and rollouts in ``private/``."""
    return [
        tensor
        for path in sorted((folder / "private").rglob("*.safetensors"))
        if path.name not in PUBLIC
        for tensor in load_file(path).values()
        if tensor.dtype.kind == "f"
    ]


def learned_figures(folder: Path) -> Iterator[float]:
    """Yield what ``private/`` says of models and policy."""

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, float):
            yield value
        elif isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                yield from numbers(one)

    for path in sorted((folder / "private").rglob("*.json")):
        yield from numbers(json.loads(path.read_text()))


def gate_nothing_leaves(run: Finished) -> None:
    """No file outside ``private/``, no argument and no word holds a secret; nothing is released."""
    secrets = run.secrets
    assert sum(np.size(one) for one in secrets.learned) > 1000, "nothing was learned"
    assert len(secrets.figures) > 10, "nothing was said of what was learned"
    assert len(run.sent) > 5, "nothing was sent"
    scan_unprotected(run.folder, secrets, said=run.said, sent=run.sent)
    certificate = json.loads(run.certificate.read_text())
    assert certificate["status"] == "non_private"
    for what in ("outputs", "ledger_entries", "stages"):
        assert certificate[what] == [], f"a run without privacy certifies {what}"
    assert run.store.ids() == [DATASET], "a run without privacy released a dataset"
