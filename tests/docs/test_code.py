"""The code of the documentation is run, or says why not."""

import functools
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
import yaml
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.collection.maze2d import Maze2DRecipe
from distributed_privrl.core.config import with_overrides
from distributed_privrl.experiments import demo_configs
from distributed_privrl.marginals import belief
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from tests.docs.pages import PAGES, ROOT, all_fences, command_lines, fences, named
from tests.docs.running import in_folder, leave_out_pictures, run_code
from tests.docs.smaller import FEW_STEPS, QUICK_PRICE, TINY, smaller
from tests.marginals.programs import chained

OWN_TESTS = {"README.md", "docs/primorl.md", "docs/expert.md"}
"""Pages whose examples `tests/docs/test_example.py` runs."""

WITH_PICTURES = {"docs/evaluation.md"}
"""Pages whose reports are made in full: pictures and trees take longer than all the rest."""

MOST_LEFT_OUT = 25


class World(NamedTuple):
    """Where a page's code is run."""

    folder: Path
    patch: pytest.MonkeyPatch

    def privrl(self, *words: str) -> None:
        done = CliRunner().invoke(app, words, prog_name="privrl")
        assert done.exit_code == 0, done.output

    def collect(self, dataset: str, *words: str) -> None:
        self.privrl("collect", "maze2d-umaze", "--dataset", dataset, *FEW_STEPS, *words)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.yaml").write_text(text)


def quickstart(world: World) -> dict[str, Any]:
    """Return nothing; a smaller demo, and what the README's run needs."""
    small_demo(world.patch)
    world.patch.setattr(belief, "estimated", chained)
    for name, text in shown_files(ROOT / "README.md").items():
        (world.folder / name).write_text(text)
    for line in command_lines(ROOT / "README.md")[:2]:
        world.privrl(*shlex.split(line)[1:])
    return {}


def shown_files(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by their names."""
    return {fence.name: fence.text for fence in all_fences(page) if fence.name}


def small_demo(patch: pytest.MonkeyPatch) -> None:
    name = demo_configs.DEFAULT
    whole = demo_configs.DEMOS[name]
    tiny = [value for value in TINY if not value.startswith(("model.", "training.sampling."))]
    values = with_overrides({**whole.config}, [*tiny, "model.hidden=[8]"])
    recipes = tuple((recipe, kept, {**rest, "steps": 300}) for recipe, kept, rest in whole.recipes)
    patch.setitem(demo_configs.DEMOS, name, replace(whole, config=values, recipes=recipes))


def before_a_sweep(world: World) -> dict[str, Any]:
    """Return nothing; the mazes of the smallest ready sweep."""
    for line in command_lines(ROOT / "tune_configs" / "sweeps" / "smoke.yaml")[:2]:
        words = shlex.split(line)[1:]
        world.privrl(*words, *smaller(words))
    return {}


def command_line(world: World) -> dict[str, Any]:
    """Return nothing; a table, its schema, a configuration that fits the page's budget, mazes."""
    before_a_sweep(world)
    files = shown_files(ROOT / "README.md")
    (world.folder / "stays.csv").write_text(files["stays.csv"])
    run = ["data.unit=transition", "data.units=12", "training.expected_batch_size=12"]
    run += ["privacy.epsilon=6", "privacy.delta=5e-7"]
    rounds = {"method": "privorl_n", "model": {}, "training": {"pretraining": {"steps": 0}}}
    shown = yaml.safe_load(files["stays.yaml"]) | rounds
    values = with_overrides(shown, [*run, *TINY[1:4], QUICK_PRICE])
    world.write(stays=files["schema.yaml"], bounds=files["bounds.yaml"], run=yaml.safe_dump(values))
    return {}


def evaluated(world: World) -> dict[str, Any]:
    """Return nothing; a dataset that stands for a released one, and the real one."""
    world.collect("maze/umaze-private-v0", "--public")
    world.collect("maze/umaze-v0", "--seed", "1")
    return {}


def environments(world: World) -> dict[str, Any]:
    """Return what an expert saw; mazes of few steps, also those that the page's Python asks for."""
    asked = Maze2DRecipe.total_steps
    world.patch.setattr(
        Maze2DRecipe, "total_steps", lambda *given: min(int(FEW_STEPS[1]), asked(*given))
    )
    return {"observations": torch.zeros(3, 4)}


def value_iteration(world: World) -> dict[str, Any]:
    """Return nothing; a policy that has learned nothing, and a ward with what is known of it."""
    page = ROOT / "docs" / "value_iteration.md"
    (ward,) = (fence.text for fence in fences(page, "yaml") if "ward/stays-v0" in fence.text)
    (known,) = (fence.text for fence in fences(page, "python") if "facts.npz" in fence.text)
    world.write(ward=ward)
    exec(compile(known, "facts", "exec"), {})
    world.privrl("collect", "icu-sepsis", "--dataset", "ward/stays-v0", "-o", "patients=20")
    world.privrl("plan", "ward.yaml", *smaller(["plan", "ward.yaml"]))
    with np.load("facts.npz") as shown:  # the page's own cells take ten seconds
        coarse = np.append(np.zeros(713, np.int64), [1, 2, 3])
        np.savez("facts.npz", **{**shown, "clusters": coarse})
    (world.folder / "runs" / "icu").mkdir(parents=True)
    policy = GreedyPolicy(actions=np.zeros((20, 716), np.int64), values=np.zeros((21, 716)))
    policy.save(world.folder / "runs" / "icu" / "policy.safetensors")
    return {}


def tutorial(world: World) -> dict[str, Any]:
    """Return nothing; the page's files, and the first interviews of its table."""
    world.patch.setattr(pandas, "read_csv", functools.partial(pandas.read_csv, nrows=400))
    return _shown(world, "tutorial")


def clinic(world: World) -> dict[str, Any]:
    """Return nothing; the page's files, and no more than the first patients of its table."""
    whole = pandas.DataFrame.to_csv
    world.patch.setattr(
        pandas.DataFrame, "to_csv", lambda rows, *a, **k: whole(rows[:400], *a, **k)
    )
    return _shown(world, "clinic")


def _shown(world: World, page: str) -> dict[str, Any]:
    for name, text in shown_files(ROOT / "docs" / f"{page}.md").items():
        (world.folder / name).write_text(text)
    world.patch.setattr(belief, "estimated", chained)
    return {}


@functools.cache
def _ward() -> tempfile.TemporaryDirectory[str]:
    """A folder where the README's run has ended, for pages that begin after it."""
    folder = tempfile.TemporaryDirectory()
    with pytest.MonkeyPatch.context() as patch:
        for name, text in shown_files(ROOT / "README.md").items():
            (Path(folder.name) / name).write_text(text)
        in_folder(Path(folder.name), patch)
        patch.setenv("MINARI_DATASETS_PATH", "datasets")
        patch.setenv("PRIVRL_LEDGER", "sqlite:///ledger.sqlite")
        patch.setattr(belief, "estimated", chained)
        leave_out_pictures(patch)
        for line in command_lines(ROOT / "README.md")[:4]:
            done = CliRunner().invoke(app, shlex.split(line)[1:], prog_name="privrl")
            assert done.exit_code == 0, done.output
    return folder


def after_a_run(world: World) -> dict[str, Any]:
    """Return nothing; the README's run, its datasets and its ledger."""
    beside = shutil.ignore_patterns("tune_configs")
    shutil.copytree(_ward().name, world.folder, dirs_exist_ok=True, ignore=beside)
    world.patch.setenv("MINARI_DATASETS_PATH", str(world.folder / "datasets"))
    world.patch.setenv("PRIVRL_LEDGER", f"sqlite:///{world.folder / 'ledger.sqlite'}")
    return {}


GIVEN: dict[str, Callable[[World], dict[str, Any]]] = {
    "docs/quickstart.md": quickstart,
    "docs/cli.md": command_line,
    "docs/evaluation.md": evaluated,
    "docs/benchmarks.md": evaluated,
    "docs/environments.md": environments,
    "docs/value_iteration.md": value_iteration,
    "docs/tutorial.md": tutorial,
    "docs/clinic.md": clinic,
    "docs/howto/set-a-budget.md": after_a_run,
    "docs/howto/run-a-sweep.md": before_a_sweep,
    "docs/howto/operate-the-ledger.md": after_a_run,
    "docs/howto/read-a-certificate.md": after_a_run,
    "docs/howto/give-a-release.md": after_a_run,
}
"""What a page takes as given; returns names that its Python takes as given."""

RUN = [
    page
    for page in PAGES
    if any(fence.is_code and not fence.left_out for fence in all_fences(page))
]


@pytest.mark.parametrize("page", [page for page in RUN if named(page) not in OWN_TESTS], ids=named)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder(tmp_path, monkeypatch)
    if named(page) not in WITH_PICTURES:
        leave_out_pictures(monkeypatch)
    names = GIVEN.get(named(page), lambda world: {})(World(tmp_path, monkeypatch))
    run_code(page, monkeypatch, smaller=smaller, names=names)


def test_the_keys_of_a_run_s_metrics_are_explained() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text()
    (said,) = [
        line for line in page.splitlines() if line.startswith("Each line of `metrics.jsonl`")
    ]
    lines = (Path(_ward().name) / "runs" / "stays" / "metrics.jsonl").read_text().splitlines()
    written = {key for line in lines for key in json.loads(line)}
    assert {"stage", "units"} <= written
    assert all(f"`{key}`" in said for key in written)


def test_what_is_not_run_is_little_and_says_why() -> None:
    code = [fence for page in PAGES for fence in all_fences(page) if fence.is_code]
    left_out = [fence for fence in code if fence.left_out]
    elsewhere = [re.search(r"tests/\S+\.py", fence.remark or "") for fence in left_out]
    assert all((ROOT / found.group()).exists() for found in elsewhere if found)
    assert elsewhere.count(None) <= MOST_LEFT_OUT < len(code) / 2
    assert OWN_TESTS | set(GIVEN) <= {named(page) for page in RUN}
    for page in PAGES:
        remarks = re.findall(r"<!-- ((?:not run|exits).*?) -->", page.read_text())
        found = [fence.remark for fence in all_fences(page) if fence.remark]
        assert remarks == found, f"{named(page)}: a remark stands on the line before its block"
        assert all(re.match(r"(not run|exits with \d+): \S", remark) for remark in remarks)


def test_a_page_whose_code_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)
    page = tmp_path / "page.md"
    for block in (
        "```python\nimport distributed_privrl as pr\npr.PrivacyBudget.dataset\n```\n",
        "```sh\nprivrl ledger show --of nobody\n```\n",
        "```\nprivrl doctors\n```\n",
        "```sh\nls\n```\n",
        "<!-- exits with 4: it does not -->\n```sh\nprivrl config schema privorl_n\n```\n",
    ):
        page.write_text(block)
        with pytest.raises((AssertionError, AttributeError)):
            run_code(page, monkeypatch)
        page.write_text(f"<!-- not run: it fails -->\n{block}" if "exits" not in block else "")
        assert run_code(page, monkeypatch) == []
