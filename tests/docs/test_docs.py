"""What the documentation quotes exists: commands, files, links, tests, names."""

import ast
import importlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import distributed_privrl as pr
from distributed_privrl.core.config import EvaluationConfig, validate
from distributed_privrl.core.problems import fields_by_key
from distributed_privrl.core.yaml_files import parse_yaml, read_yaml
from distributed_privrl.data.bounds import bounds_from_file
from distributed_privrl.data.corpus_datasets import CorpusSchema
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.evaluation.trainer import TRAINERS, PlainTrainer
from distributed_privrl.experiments.registry import (
    METHODS,
    load_config,
    method_named,
    parse_config,
    plan_run,
)
from distributed_privrl.experiments.sweeps.config import load_sweep
from distributed_privrl.methods.dprft.evolution import evolution_of
from distributed_privrl.methods.privorl.config import PrivorlNConfig
from distributed_privrl.stages.round_plan import RoundPlan
from tests.docs.pages import (
    CONFIGURATIONS,
    PAGES,
    ROOT,
    SWEEPS,
    Fence,
    command_lines,
    fences,
    named,
    prose,
)

README = ROOT / "README.md"
PLUG_IN = "test_plug_in.py"
"""Installs what a block needs, and runs it."""
ALL_PAGES = pytest.mark.parametrize("page", PAGES, ids=named)


@pytest.mark.parametrize("page", [*PAGES, *CONFIGURATIONS, *SWEEPS], ids=named)
def test_every_command_line_parses(page: Path, understands: Callable[[str], bool]) -> None:
    for line in command_lines(page):
        assert understands(line), line


def test_command_lines_are_found() -> None:
    assert len(command_lines(README)) >= 7
    assert len(command_lines(ROOT / "docs" / "quickstart.md")) >= 10
    assert len(command_lines(CONFIGURATIONS[-1])) >= 3


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=named)
def test_every_configuration_is_valid(path: Path, workplace: Any) -> None:
    shown = workplace.privrl("config", "validate", path)
    assert shown.exit_code == 0, shown.output
    config = load_config(path)
    if config.evaluation.trainers:
        gymnasium.spec(str(config.data.environment))


def test_configurations_are_the_variants_they_are_called() -> None:
    loaded: dict[str, Any] = {path.stem: load_config(path) for path in CONFIGURATIONS}
    assert set(loaded) == {
        "apvi_icu_sepsis",
        "marginals_fleet",
        "pgm_fleet",
        "privsyn_fleet",
        "vapvi_linear_mdp",
        "privorl_ar_maze2d",
        "privorl_ar_j_maze2d",
        "privorl_j_maze2d",
        "privorl_n_maze2d",
        "privorl_n_paper",
        "pdp_diffusion",
        "dpdm",
        "non_private",
        "pate_gan_maze2d",
        "pre_pate_gan_maze2d",
        "primorl_pendulum",
        "primorl_pendulum_paper",
        "primorl_cartpole_balance",
        "primorl_cartpole_swingup",
        "primorl_halfcheetah",
        "mopo_pendulum",
        "dprft_pubmed",
        "dprft_pubmed_gate_off",
        "dprft_pubmed_encoder",
        "dprft_pubmed_aug_pe",
        "dprft_bbc",
        "dprft_bbc_7b",
        "dprft_wildchat",
        "dprft_qmsum",
        "dp_fine_tuning_pubmed",
        "dp_transformer_maze2d",
        "expert_acrobot",
        "expert_cartpole",
        "expert_hiv",
        "expert_lunarlander",
    }
    assert loaded["pdp_diffusion"].training.pretraining.curiosity_rate == 0
    assert loaded["dpdm"].training.pretraining.steps == 0
    assert not loaded["dpdm"].data.public
    assert loaded["non_private"].privacy.epsilon is None
    paper = loaded["privorl_n_paper"]
    assert (paper.model.width, paper.model.depth) == (1024, 6)
    assert (paper.training.rounds, paper.training.expected_batch_size) == (574_000, 128)
    assert paper.training.pretraining.curiosity_rate == 0.3
    assert paper.training.expected_batch_size / paper.data.units == 1.28e-4
    assert loaded["mopo_pendulum"].privacy.epsilon is None


def test_the_presets_of_dprft_have_the_paper_s_noise() -> None:
    folder = ROOT / "tune_configs"
    printed = {"pubmed": 41.90, "bbc": 52.50, "wildchat": 52.50, "qmsum": 29.98}
    for corpus, multiplier in printed.items():
        config: Any = load_config(folder / f"dprft_{corpus}.yaml", ["training.spare=0"])
        plan: Any = plan_run(config)
        step = plan.release.noise_multiplier / math.sqrt(128)
        assert step == pytest.approx(multiplier, rel=2e-3), corpus
        assert config.training.prompts.template == corpus
    evolving: Any = load_config(folder / "dprft_pubmed_aug_pe.yaml")
    how = evolution_of(evolving)
    assert (how.iterations, how.population, how.blank_probability) == (10, 2000, 0.6)
    assert plan_run(evolving).facts()["noise_of_reward"] > 0


def test_an_ablation_of_dprft_differs_from_its_base_in_what_it_ablates_alone() -> None:
    folder = ROOT / "tune_configs"
    instruct = "Qwen/Qwen2.5-{}B-Instruct"
    ablated = {
        ("dprft_pubmed", "dprft_pubmed_encoder"): {"model.encoder": ("minilm", "hashed")},
        ("dprft_bbc", "dprft_bbc_7b"): {"model.language": (instruct.format(3), instruct.format(7))},
        # a gate that is off has no judge
        ("dprft_pubmed", "dprft_pubmed_gate_off"): {
            "training.gate": (None, False),
            "training.judge": (instruct.format(3), None),
        },
    }
    for (base, ablation), expected in ablated.items():
        one, other = (_leaves(read_yaml(folder / f"{name}.yaml")) for name in (base, ablation))
        keys = {key for key in one | other if one.get(key) != other.get(key)}
        assert {key: (one.get(key), other.get(key)) for key in keys} == expected, ablation


def test_the_baselines_of_dprft_have_the_corpus_the_budget_and_the_prompts_of_its_base() -> None:
    base, *others = (
        _leaves(read_yaml(ROOT / "tune_configs" / f"{name}.yaml"))
        for name in ("dprft_pubmed", "dprft_pubmed_aug_pe", "dp_fine_tuning_pubmed")
    )
    shared = ("data.", "privacy.", "output.", "seed")
    shared += ("training.prompts.", "training.most_tokens", "training.instruct_dtype")
    expected = {key: value for key, value in base.items() if key.startswith(shared)}
    assert len(expected) == 11
    for other in others:
        assert {key: value for key, value in other.items() if key.startswith(shared)} == expected


def _leaves(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the leaves of a file by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        found |= _leaves(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return found


def test_the_paper_s_settings_of_primorl_give_the_paper_s_noise() -> None:
    path = ROOT / "tune_configs" / "primorl_pendulum_paper.yaml"
    config: Any = load_config(path)
    for override, printed in (([], 0.52), (["privacy.epsilon=19.51"], 0.35)):
        plan = plan_run(load_config(path, override))
        assert isinstance(plan, RoundPlan)
        assert plan.mechanism is not None
        assert (plan.max_rounds, plan.sampling_probability) == (7000, 1e-3)
        assert plan.mechanism.noise_multiplier == pytest.approx(printed, rel=2e-3)
    local, policy = config.training.local, config.training.policy
    assert (local.clipping, local.projection) == ("per_layer", "batch")
    assert (local.batch_size, local.epochs, local.learning_rate) == (16, 1, 1e-3)
    assert (policy.penalty_weight, policy.horizon, policy.target_entropy) == (2, 30, -3)


def test_bounds_beside_the_configurations_are_of_the_spaces() -> None:
    for name in ("primorl_pendulum", "primorl_cartpole_balance", "primorl_cartpole_swingup"):
        data = load_config(ROOT / "tune_configs" / f"{name}.yaml").data
        made = gymnasium.make(str(data.environment))
        assert isinstance(data.bounds, Path)
        spaces: Any = (made.observation_space, made.action_space)
        bounds = bounds_from_file(ROOT / data.bounds, *spaces)
        own = np.concatenate([spaces[0].high, spaces[1].high, bounds.high[-1:]])
        finite = np.isfinite(own)
        assert bounds.high[finite].tolist() == own[finite].tolist()
        assert bounds.low[:-1].tolist() == (-bounds.high[:-1]).tolist()


@pytest.mark.parametrize(
    "fence",
    [fence for page in PAGES for fence in fences(page, "yaml")],
    ids=lambda f: named(f.page),
)
def test_every_yaml_block_validates(fence: Fence, tmp_path: Path) -> None:
    values = parse_yaml(fence.text, source=named(fence.page))
    if "search" in values:
        path = tmp_path / "sweep.yaml"
        path.write_text(fence.text)
        load_sweep(path)
    elif PLUG_IN in fence.left_out:
        assert values["method"] not in METHODS  # of the page's package alone
    elif "method" in values:
        parse_config(values, source=named(fence.page))
    elif "text" in values:
        validate(CorpusSchema, values, source=named(fence.page))
    elif "columns" in values:
        validate(ImportSchema, values, source=named(fence.page))
    elif "evaluation" in values:
        validate(EvaluationConfig, values["evaluation"], source=named(fence.page))
    else:
        path = tmp_path / "bounds.yaml"
        path.write_text(fence.text)
        bounds_from_file(path, _space(values.get("observation")), _space(values.get("action")))


def _space(sides: dict[str, Any] | None) -> gymnasium.Space[Any]:
    if sides is None:
        return gymnasium.spaces.Discrete(5)
    width = max(len(side) if isinstance(side, list) else 1 for side in sides.values())
    return gymnasium.spaces.Box(-1e9, 1e9, (width,))


@ALL_PAGES
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@ALL_PAGES
def test_every_path_and_test_that_is_named_exists(page: Path) -> None:
    quoted = re.findall(
        r"`((?:distributed_privrl|tests|tune_configs|benchmarks)/[^`\s]*)`", prose(page)
    )
    for name in quoted:
        path, _, function = name.partition("::")
        if path == "benchmarks/results/":
            continue  # made by the first benchmark that is saved
        assert (ROOT / path).exists(), name
        if function:
            assert f"def {function}(" in (ROOT / path).read_text(), name


def test_privacy_sentences_have_tests() -> None:
    for section in prose(ROOT / "docs" / "privacy.md").split("\n## ")[1:]:
        assert "`tests/" in section, section.splitlines()[0]
        assert "* Code: `distributed_privrl/" in section, section.splitlines()[0]


@ALL_PAGES
def test_python_blocks_compile_and_import_what_exists(page: Path) -> None:
    for fence in fences(page, "python"):
        if PLUG_IN in fence.left_out:
            continue
        for node in ast.walk(ast.parse(fence.text)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), alias.name


@ALL_PAGES
def test_public_names_are_public(page: Path) -> None:
    for name in re.findall(r"\bpr\.(\w+)", page.read_text()):
        assert name in pr.__all__, name


def test_method_tables_are_honest() -> None:
    rows = [line for line in README.read_text().splitlines() if line.endswith("| available |")]
    assert sorted(re.findall(r"^\| `(\w+)`", "\n".join(rows), re.MULTILINE)) == list(METHODS)
    page = (ROOT / "docs" / "configuration.md").read_text()
    kinds = {
        name: ", ".join(kind.__name__ for kind in trainer.algorithm.action_spaces)
        for name, trainer in TRAINERS.items()
        if isinstance(trainer, PlainTrainer)
    }
    assert dict(re.findall(r"\| `(\w+)` \| ((?:Box|Discrete).*?) \|$", page, re.MULTILINE)) == kinds


def test_variants_that_the_page_names_are_keys() -> None:
    page = (ROOT / "docs" / "privorl_n.md").read_text()
    for override in re.findall(r"`((?:training|privacy)\.[\w.]+): (\w+)`", page):
        parse_config(
            load_config(ROOT / "tune_configs" / "dpdm.yaml").model_dump(mode="json"),
            source="privorl_n.md",
            overrides=[f"{override[0]}={override[1]}"],
        )
    for key in re.findall(
        r"`((?:data|training|model|output|runtime|privacy)\.[a-z_.]+[a-z])`", page
    ):
        assert _has_key(PrivorlNConfig, key.split(".")), key


def _has_key(model: Any, path: list[str]) -> bool:
    if not path:
        return True
    field = fields_by_key(model).get(path[0]) if hasattr(model, "model_fields") else None
    return field is not None and _has_key(field.annotation, path[1:])


def test_the_configuration_says_of_each_method_whether_it_computes_on_gpus() -> None:
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    (said,) = [line for line in lines if "compute on CUDA" in line]
    parts = [set(re.findall(r"`(\w+)`", part)) for part in said.split("compute on CPUs alone")]
    of = {name: method_named(name).on_gpus for name in METHODS}
    assert [part & set(of) for part in parts] == [
        {name for name in of if of[name]},
        {name for name in of if not of[name]},
    ]
