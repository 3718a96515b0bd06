"""Each method's demo: its configuration is a plan, and a small one runs to the end."""

import functools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from distributed_privrl.collection.recipes import RECIPES
from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.corpus_datasets import FILE
from distributed_privrl.experiments import demo, demo_configs
from distributed_privrl.experiments.demo_texts import DemoCorpus
from distributed_privrl.experiments.registry import METHODS, parse_config, plan_run
from distributed_privrl.privacy.accounting import coarse_figures
from distributed_privrl.privacy.verification import verify_certificate


def test_every_method_has_a_demo_that_can_be_planned() -> None:
    twins = {"privorl_j_unet", "privorl_ar_j", "marginals_j"}  # as their rows' or kernel's demo
    twins |= {"dp_transformer"}
    left_out = {*twins, "mopo", "policy_value"}  # without privacy; of a release that is there
    left_out |= {"pate_gan", "pre_pate_gan", "dp_fine_tuning"}  # baselines: nobody starts with them
    assert set(demo_configs.DEMOS) == set(METHODS) - left_out
    for name, found in demo_configs.DEMOS.items():
        config = parse_config(found.config, source="test")
        assert config.method == name
        with coarse_figures():  # as the command plans
            assert plan_run(config).epsilon(1) > 0
        collected = {dataset for _, dataset, _ in found.recipes}
        collected |= set() if found.corpus is None else {found.corpus.dataset}
        assert {config.data.sensitive, *config.data.public} == collected
        assert all(recipe in RECIPES for recipe, _, _ in found.recipes)


def test_a_small_demo_runs_to_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = demo_configs.DEMOS["apvi"]
    data = {**whole.config["data"], "units": 500}
    small = replace(
        whole,
        config={**whole.config, "data": data, "evaluation": {}},
        recipes=(("gridworld", demo_configs.WARD, {"seed": 1, "options": {"trajectories": 500}}),),
    )
    monkeypatch.setitem(demo_configs.DEMOS, "apvi", small)
    out = tmp_path / "demo"
    result = demo.run_demo(out, method="apvi", executor_factory=lambda _: LocalExecutor())
    assert float(result.summary["best policy there is"]) > 0.9
    assert set(result.summary) > {"epsilon", "certificate", "report", "ledger", "this policy"}
    assert result.summary["datasets"] == str(out / "datasets")
    assert result.next_lines[-2:] == (
        f"export MINARI_DATASETS_PATH={out / 'datasets'}",
        f"privrl certificate verify {out / 'run' / 'certificate.json'}",
    )
    assert verify_certificate(out / "run" / "certificate.json").outputs_missing == ()
    with pytest.raises(ConfigError, match="is not empty"):
        demo.run_demo(out, method="apvi", executor_factory=lambda _: LocalExecutor())
    with pytest.raises(ConfigError, match="has no demo"):
        demo.run_demo(tmp_path / "x", method="none", executor_factory=lambda _: LocalExecutor())


def test_the_demo_of_texts_shows_them_beside_those_of_the_untuned_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "extra text is not installed: pip install '.[text]'"
    pytest.importorskip("transformers", reason=reason)
    whole = demo_configs.DEMOS["dprft"]
    sizes = {"steps": 2, "batch": 2, "vocabulary": 300, "context": 96, "width": 16}
    corpus = DemoCorpus(
        dataset="demo/manuals-v0", private=("gymnasium",), public=("opacus",), documents=40
    )
    changes = {
        "data": {**whole.config["data"], "units": 40},
        "model": {
            "reward": "dp_mean_embedding",
            "language": {**sizes, "layers": 1, "heads": 2, "packages": ["opacus"]},
        },
        "training": {
            **{"steps": 1, "prompts_per_step": 2, "samples": 2, "most_tokens": 24},
            "prompts": {"template": "any", "file": str(tmp_path / "any.yaml")},
        },
        "output": {"size": 4},
    }
    (tmp_path / "any.yaml").write_text(
        'any: {topic: topic, gate: {least_words: 1, most_repetition: 1.0}, prompt: "On {topic}:"}'
    )
    small = replace(whole, config={**whole.config, **changes}, corpus=corpus)
    monkeypatch.setitem(demo_configs.DEMOS, "dprft", small)
    out = tmp_path / "demo"
    result = demo.run_demo(out, method="dprft", executor_factory=lambda _: LocalExecutor())
    assert result.summary["certificate"].endswith("(verified)")
    assert {"text before 1", "text after 1"} <= set(result.summary)
    kept = (out / "run" / "private" / "comparison.json").read_text()
    figures = json.loads(kept)
    assert set(figures) == {"before its tuning", "after it", "of real texts"}
    said = result.summary["similarity to held-out texts"]
    assert all(f"{one['mean']:.3f} {name}" in said for name, one in figures.items())
    held = (out / "held-out.jsonl").read_text().splitlines()
    stored = pd.read_parquet(next((out / "datasets").rglob(FILE)))["text"]
    assert len(held) > 4
    assert len(stored) == 40
    assert not {json.loads(line)["text"] for line in held} & set(stored)
    assert not (out / "corpus.jsonl").exists()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[text\]"):
        demo.run_demo(tmp_path / "x", method="dprft", executor_factory=lambda _: LocalExecutor())


def test_a_quick_demo_is_the_same_run_with_a_tenth_of_the_work(tmp_path: Path) -> None:
    assert demo_configs.DEMOS[demo_configs.DEFAULT].quick
    work = ("rounds", "pretraining.steps", "evaluation.steps", "seeds", "episodes")
    for name, found in demo_configs.DEMOS.items():
        if not found.quick:
            with pytest.raises(ConfigError, match=f"of {name} has no --quick; those of privorl_n"):
                demo.run_demo(
                    tmp_path, method=name, quick=True, executor_factory=lambda _: LocalExecutor()
                )
            continue
        whole = parse_config(found.config, source="test")
        short = parse_config(with_overrides(found.config, found.quick), source="test")
        for key in found.quick:
            path = key.partition("=")[0].split(".")
            sides = [functools.reduce(getattr, path, side) for side in (short, whole)]
            assert sides[0] <= sides[1] / 2, key
            assert key.partition("=")[0].endswith(work), key
        with coarse_figures():
            epsilons = [plan_run(one).epsilon(plan_run(one).rounds) for one in (short, whole)]
        assert max(epsilons) <= found.config["privacy"]["epsilon"]
        assert short.privacy == whole.privacy
        assert (short.data, short.model, short.output) == (whole.data, whole.model, whole.output)


@pytest.mark.parametrize("method", ["privorl_ar", "privorl_n", "marginals", "privorl_j"])
def test_the_suggested_evaluation_is_the_demo_s_own(method: str) -> None:
    """The command's options are the configuration's, so that both come to the same figure."""
    config = parse_config(demo_configs.DEMOS[method].config, source="test")
    words = demo._as_evaluated(config)
    given = dict(zip(words[::2], words[1::2], strict=True))
    overrides = [value for name, value in zip(words[::2], words[1::2], strict=True) if name == "-o"]
    own = demo_configs.EVALUATION
    assert with_overrides({}, overrides) == own["options"]
    assert given["--trainers"].split(",") == own["trainers"]
    for name in ("seeds", "steps", "episodes"):
        assert int(given[f"--{name}"]) == own[name]
    if config.evaluation.trainers:
        assert dict(config.evaluation.options) == own["options"]


def test_an_environment_that_is_not_active_is_activated_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/some where/.venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert demo._activation() == ("source '/some where/.venv/bin/activate'",)
    monkeypatch.setenv("VIRTUAL_ENV", "/some where/.venv")
    assert demo._activation() == ()
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.delenv("VIRTUAL_ENV")
    assert demo._activation() == ()
