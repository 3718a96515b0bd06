"""Keys that programs read and people write, files of folders and variables are in the pages."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from distributed_privrl.cli import ledger
from distributed_privrl.cli.planning import plan_facts
from distributed_privrl.collection.recipes import RECIPES
from distributed_privrl.core.threads import THREAD_ENVIRONMENT
from distributed_privrl.data.corpus_datasets import CorpusSchema
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.evaluation.canaries import CanaryRound
from distributed_privrl.evaluation.membership import Estimate
from distributed_privrl.evaluation.one_run import Guesses
from distributed_privrl.evaluation.survival import Survived
from distributed_privrl.experiments.audit_report import ChargedRound, canary_facts
from distributed_privrl.experiments.demo_configs import DEMOS
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import METHODS, load_config, plan_run
from distributed_privrl.experiments.rehearsal_report import Rehearsal
from distributed_privrl.experiments.sweeps.costs import PlannedTrial, SweepCost
from distributed_privrl.privacy.accounting import coarse_figures
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger.records import Account, Hold, LedgerEntry
from distributed_privrl.runtime.session import RAY_ENVIRONMENT
from tests.docs.pages import CONFIGURATIONS, ROOT, fences, prose, section

FILES, CLI = ROOT / "docs" / "files.md", ROOT / "docs" / "cli.md"
SET_BY_US = {
    *RAY_ENVIRONMENT,
    *("RAY_AIR_NEW_OUTPUT", "RAY_CHDIR_TO_TRIAL_DIR", "RAY_JOB_STOP_WAIT_TIME_S"),
    *("RAY_JOB_CONFIG_JSON_ENV_VAR", "PRIVRL_JOB"),
} - {"RAY_AUTH_MODE"}
"""For Ray, or by Ray or a script for us: nobody else is to set them."""
_VARIABLE = re.compile(r"(?:PRIVRL|MINARI|RAY|AWS|CLOUD|HF|TMPDIR|OMP)_[A-Z][A-Z0-9_]+")


def quoted(text: str, column: int = 0) -> list[str]:
    """Return the words in backticks of a column of the tables in a text."""
    rows = [re.split(r" \| ", row[2:]) for row in re.findall(r"^\| .*`.*$", text, re.MULTILINE)]
    return [word for row in rows for word in re.findall(r"`([\w.]+)`", row[column])]


def keys(*records: type) -> set[str]:
    return {field.name for record in records for field in fields(record)}


def test_every_variable_that_the_package_reads_has_its_row() -> None:
    paths = [*(ROOT / "distributed_privrl").rglob("*.py")]
    constants = {
        node.value
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    read = {one for one in constants if _VARIABLE.fullmatch(one)} - SET_BY_US
    rows = set(quoted(section(ROOT / "docs" / "configuration.md", "Environment variables")))
    assert read - rows - set(THREAD_ENVIRONMENT) - _PREFIXES == set()
    assert rows - read == _OF_LIBRARIES
    assert THREAD_ENVIRONMENT["OMP_NUM_THREADS"] == "1"


_PREFIXES = {"RAY_AUTH"}
"""Begins of names, not names."""
_OF_LIBRARIES = {
    *("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "JAX_PLATFORMS", "TMPDIR")
}
"""Read by libraries alone."""


def test_every_file_of_a_run_has_its_row(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    paths = [
        *(run.config_path, run.bounds_path, run.certificate, run.metrics, run.events, run.report),
        *(run.checkpoint, run.sample("a-v0"), run.selection, run.private),
    ]
    rows = re.findall(r"^\| (`.*?) \|", section(FILES, "A run's folder"), re.MULTILINE)
    shown = {name.strip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
    assert {path.relative_to(tmp_path).parts[0] for path in paths} <= shown
    for path in CONFIGURATIONS:
        config = load_config(path)
        files = set(getattr(config.output, "files", ()))
        assert not files or files & shown, f"{path.name}: none of {files} is an example there"


def test_the_methods_that_have_a_demo_are_named() -> None:
    (row,) = re.findall(r"^\| `privrl demo` \|.*`--method` is (.+) \|$", CLI.read_text(), re.M)
    assert set(re.findall(r"`(\w+)`", row)) == set(DEMOS)


@pytest.fixture(scope="module")
def planned() -> set[str]:
    """The keys of plans of all methods, a configuration each."""
    found: set[str] = set()
    paths = {load_config(path).method: path for path in CONFIGURATIONS}
    assert set(paths) >= set(METHODS) - _WITHOUT
    with coarse_figures():
        for path in paths.values():
            config = load_config(path)
            found |= set(plan_facts(config, plan_run(config)))
    return found


_WITHOUT = {"marginals_j", "privorl_j_unet", "policy_value"}
"""Methods of which no configuration is kept."""


@pytest.mark.filterwarnings("ignore:delta=.* is above")
def test_every_key_of_a_plan_has_its_row(planned: set[str]) -> None:
    said = section(FILES, "A plan for programs")
    common, _, own = said.partition("Methods add these")
    rows = set(quoted(common)) | set(quoted(own, 1))
    assert planned - rows == set()
    # Of plans that no kept configuration makes: unknown columns, many numbers of units, and so on.
    assert rows - planned == _ELSEWHERE
    trials = said.partition("sweep --dry-run --json")[2]
    assert keys(SweepCost, PlannedTrial) <= set(re.findall(r"`(\w+)`", trials))


_ELSEWHERE = {
    *("bounds", "by_units", "columns", "columns_unknown", "curiosity_rate", "marginals"),
    *("no_single_values", "noise_of_value", "release", "returns", "trainer"),
}


def test_every_key_of_the_ledger_s_json_has_its_row() -> None:
    said = section(FILES, "A ledger for programs")
    rows = re.findall(r"^\| `(\w+)` \| (`.*?) \|", said, re.MULTILINE)
    shown: dict[str, set[str]] = {name: set() for name, _ in rows}
    for name, cell in rows:
        shown[name] |= set(re.findall(r"`(\w+)`", cell))
    written: dict[str, Any] = ledger._as_json([_account()], [], [], [])
    assert set(written) == set(shown)
    assert set(written["accounts"][0]) == shown["accounts"]
    exported = set(ledger.EXPORTED)
    assert keys(LedgerEntry) - exported == shown["entries"]
    assert keys(Hold) - exported == {*shown["holds"]} - {"epsilon", "delta"}


def _account() -> Account:
    numbers: Iterable[str] = ("epsilon", "delta", "spent_epsilon", "spent_delta")
    values: dict[str, Any] = dict.fromkeys(keys(Account), "a") | dict.fromkeys(numbers, 1.0)
    return Account(**values)


def test_every_key_of_rehearsals_and_audits_is_named() -> None:
    said = section(FILES, "A rehearsal for programs")
    named = set(re.findall(r"`(\w+)`", said))
    assert named == keys(Rehearsal, Survived) | {"promise"}

    half = Estimate(value=0.5, low=0.4, high=0.6, chance=0.5)
    found = CanaryRound(
        canaries=100,
        participants=50,
        guesses=Guesses(canaries=100, made=10, right=6),
        mu=half,
        sampled=half,
        noise_source="insecure_seeded",
    )
    mechanism = PrivateRound(clip_norm=1.0, noise_multiplier=2.0, sampling_probability=0.5)
    facts = canary_facts(found, ChargedRound(mechanism=mechanism, delta=1e-5))
    audits = section(FILES, "An audit for programs")
    assert set(quoted(audits)) == set(facts)
    inner = {key for one in facts.values() if isinstance(one, dict) for key in one}
    assert inner <= set(re.findall(r"`(\w+)`", audits))


def test_every_key_of_a_schema_and_option_of_a_recipe_is_named() -> None:
    data, environments = ROOT / "docs" / "data.md", ROOT / "docs" / "environments.md"
    written = _named(data) | set(
        re.findall(r"\w+", " ".join(fence.text for fence in fences(data, "yaml")))
    )
    for schema in (ImportSchema, CorpusSchema):
        assert set(_inner_keys(schema)) <= written, schema
    told = _named(environments)
    for name, recipe in RECIPES.items():
        assert name.removesuffix("-dense") in environments.read_text()
        assert set(_inner_keys(recipe.options)) <= told, name


def _named(page: Path) -> set[str]:
    """Return the words that stand in backticks on a page."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", prose(page)))))


def _inner_keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of a model's keys, and of those within them."""
    for name, field in model.model_fields.items():
        yield field.alias or name
        inner = [field.annotation]
        while inner:
            one = inner.pop()
            inner += get_args(one)
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from _inner_keys(one)
