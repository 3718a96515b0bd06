"""A tiny run of every method, as the command line runs it."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import yaml
from safetensors import safe_open

from distributed_privrl.core.config import RunConfig
from distributed_privrl.privacy.verification import read_certificate
from tests.worlds import crowd, games, grid, intake, judged, mazes, notes, swings, walks
from tests.worlds.world import World

SHORT = {"training__spare": 12, "training__block_rounds": 2, "privacy__accountant": "rdp"}
"""Blocks of which a run can lose several, priced in no time."""

Made = tuple[World, RunConfig]


def _generator(store: Callable[[Path], Any], config: RunConfig) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        store(folder / "datasets")
        return World(folder).afford(config), config

    return make


def _from_master(kind: Any, store: Callable[[Path], Any], **changes: Any) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        master = folder / "master"
        world = kind(folder, store(master))
        shutil.rmtree(master)
        return world, world.config(**changes)

    return make


def _budgeted(kind: Any, **changes: Any) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        world = kind(folder).budget()
        return world, world.config(**changes)

    return make


def _value_iteration(method: str) -> Callable[[Path], Made]:
    return lambda folder: (grid.Grid(folder).budget(), grid.config(method))


def _admitted(method: str, **changes: Any) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        master = intake.admission_store(folder / "master" / "datasets")
        world = intake.Intake(folder, master, method).budget()
        shutil.rmtree(folder / "master")
        return world, world.config(**changes)

    return make


_EPISODE = {"episodes": 1, "horizon": 3}
_UNET = {"width": 8, "depth": 2, "horizon": 8}

WORLDS: dict[str, Callable[[Path], Made]] = {
    "privorl_ar": _generator(mazes.maze_store, mazes.ar_config(**SHORT)),
    "privorl_n": _generator(mazes.maze_store, mazes.config(**SHORT)),
    "privorl_j": _generator(walks.walk_store, walks.config(**SHORT)),
    "privorl_j_unet": _generator(
        walks.walk_store, walks.config(method="privorl_j_unet", model=_UNET, **SHORT)
    ),
    "privorl_ar_j": _generator(walks.walk_store, walks.ar_config(**SHORT)),
    "dp_transformer": _generator(walks.walk_store, walks.token_config(**SHORT)),
    "marginals": _admitted("marginals", training__tables=1),
    "pgm": _admitted("pgm", training__pairs=1, training__triples=0),
    "privsyn": _admitted("privsyn"),
    "marginals_j": _generator(walks.walk_store, walks.marginals_config(training__tables=1)),
    "pate_gan": _budgeted(games.Games),
    "pre_pate_gan": _budgeted(games.Games, taught=True),
    "primorl": _from_master(swings.Swings, swings.swing_store, evaluation=_EPISODE, **SHORT),
    "mopo": _from_master(
        swings.Swings,
        swings.swing_store,
        method="mopo",
        privacy__epsilon=None,
        training__expected_batch_size=64,
        evaluation=_EPISODE,
    ),
    "expert": _from_master(
        crowd.Crowd,
        crowd.crowd_store,
        evaluation={"episodes": 1, "max_steps": 40},
        output__dataset="crowd/stable-v0",
        **SHORT,
    ),
    "policy_value": _budgeted(judged.Judged),
    "dprft": _budgeted(notes.Notes),
    "dp_fine_tuning": _budgeted(notes.LearnedNotes),
    "apvi": _value_iteration("apvi"),
    "vapvi": _value_iteration("vapvi"),
}
"""A world of each method, and its run."""

UNPROTECTED = {"mopo"}
"""Methods that charge nobody and release nothing: no ledger matters to their runs."""


GOES_ON_WITHOUT = {
    "marginals": "",
    "marginals_j": "",
    "pgm": "",
    "privsyn": "",
    "expert": "/filter",
}
"""Methods that end without a step that was drawn and lost, by the end of the entry's id.

No spare step is drawn in its place, so that others are learned than in an undisturbed run.
"""


def prepared(method: str) -> Callable[[Path], None]:
    """Return what makes the world of a method's run: datasets, ledger and output in a folder each.

    Args:
        method: its name.
    """

    def prepare(folder: Path) -> None:
        world, config = WORLDS[method](folder)
        world.ledger.close()
        for name in ("ledger", "out"):
            (folder / name).mkdir()
        for path in folder.glob("ledger.sqlite*"):
            path.rename(folder / "ledger" / path.name)
        values = config.model_dump(mode="json")
        (folder / "run.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    return prepare


def parameters_of(run: Path, datasets: Path) -> str:
    """Return a digest of all that a finished run learned and released, but for names of runs.

    What a run without privacy learned lies in ``private/``.

    Args:
        run: its folder.
        datasets: folder of what it released.
    """
    digest = hashlib.sha256()
    certificate = read_certificate(run / "certificate.json")
    for output in certificate.outputs:
        if output.id.endswith(".hdf5"):  # whose bytes differ where nothing in them does
            digest.update(_arrays_of(datasets / output.id))
        elif not output.id.endswith((".json", ".safetensors", ".pt")):  # the same parameters twice
            digest.update(f"{output.id} {output.sha256}".encode())
    for path in sorted(run.rglob("*.safetensors")):
        if "private" in path.parts and certificate.status == "valid":
            continue
        with safe_open(path, framework="np") as file:
            for name in sorted(file.keys()):
                digest.update(name.encode() + file.get_tensor(name).tobytes())
    return digest.hexdigest()


def _arrays_of(path: Path) -> bytes:
    digest = hashlib.sha256()

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            digest.update(name.encode() + item[()].tobytes())

    with h5py.File(path, "r") as file:
        file.visititems(add)
    return digest.digest()
