"""Each method's demo: its configuration is a plan, and a small one runs to the end."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distributed_privrl.collection.recipes import RECIPES
from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.experiments import demo, demo_configs
from distributed_privrl.experiments.registry import METHODS, parse_config, plan_run
from distributed_privrl.privacy.verification import verify_certificate


def test_every_method_has_a_demo_that_can_be_planned() -> None:
    twins = {"privorl_j_unet", "privorl_ar_j", "marginals_j"}  # as their rows' or kernel's demo
    # Without privacy; of a release that is there; of a corpus and a language model that are.
    left_out = {*twins, "mopo", "policy_value", "dprft"}
    assert set(demo_configs.DEMOS) == set(METHODS) - left_out
    for name, found in demo_configs.DEMOS.items():
        config = parse_config(found.config, source="test")
        assert config.method == name
        assert plan_run(config).epsilon(1) > 0
        collected = {dataset for _, dataset, _ in found.recipes}
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
