"""The work of plans whose run ends in a policy or in its value."""

from pathlib import Path

import pytest

from distributed_privrl.experiments.registry import load_config, plan_run
from distributed_privrl.experiments.speeds import REFERENCE
from distributed_privrl.stages.effort import Effort
from tests.docs.pages import ROOT

VALUE = """
method: policy_value
data: {sensitive: ward/stays-v0, unit: patient, units: 1000, environment: CartPole-v1}
privacy: {epsilon: 1}
model: {release: ward/made-v0, returns: [0, 1], horizon: 20}
"""


@pytest.fixture
def effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what plans the work of a configuration, some of it changed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "none"))
    (tmp_path / "policy_value.yaml").write_text(VALUE)

    def planned(name: str, *changes: str) -> Effort:
        folder = tmp_path if name == "policy_value" else ROOT / "tune_configs"
        found = plan_run(load_config(folder / f"{name}.yaml", list(changes))).effort
        assert found is not None
        return found

    return planned


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("primorl_pendulum", "training.rounds=500"),
        ("primorl_pendulum", "training.expected_batch_size=1200"),
        ("primorl_pendulum", "training.local.epochs=2"),
        ("primorl_pendulum", "data.max_length=400"),
        ("primorl_pendulum", "model.hidden=[128, 128]"),
        ("primorl_pendulum", "model.members=6"),
        ("primorl_pendulum", "training.policy.steps=12000"),
        ("primorl_pendulum", "training.policy.hidden=[256, 256]"),
        ("primorl_pendulum", "training.policy.action_repeat=4"),
        ("primorl_pendulum", "evaluation.every=100"),
        ("mopo_pendulum", "training.rounds=20000"),
        ("mopo_pendulum", "model.hidden=[128, 128]"),
        ("mopo_pendulum", "training.policy.steps=12000"),
        ("expert_cartpole", "training.rounds=1000"),
        ("expert_cartpole", "training.stable_steps=4"),
        ("expert_cartpole", "training.rows_per_expert=32"),
        ("expert_cartpole", "training.local=federated"),
        ("expert_cartpole", "model.hidden=[128, 128]"),
        ("expert_cartpole", "model.agent=discrete_bcq"),
        ("expert_cartpole", "filter.max_length=300"),
        ("apvi_icu_sepsis", "model.reward=estimated"),
        ("vapvi_linear_mdp", "model.horizon=40"),
        ("vapvi_linear_mdp", "model.features=one_hot"),
        ("policy_value", "training.steps=20000"),
        ("policy_value", "training.options={hidden: [512, 512]}"),
        ("policy_value", "training.trainer=discrete_bcq"),
        ("policy_value", "data.units=2000"),
    ],
)
def test_more_rounds_steps_and_weights_are_more_work(effort, name: str, change: str) -> None:
    assert REFERENCE.seconds(effort(name, change)) > REFERENCE.seconds(effort(name))


def test_rounds_and_steps_are_where_they_are_taken(effort) -> None:
    assert effort("primorl_pendulum").rounds == 250
    assert not effort("mopo_pendulum").rounds
    assert effort("expert_cartpole").rounds == pytest.approx(0.6 * 500)
    alone = effort("expert_cartpole", "filter.share=1")
    assert not alone.rounds
    assert not alone.private_rows
    assert alone.learned_steps == effort("expert_cartpole").learned_steps
    without = effort("expert_cartpole", "filter.share=0", "output.dataset=null")
    assert not without.learned_steps  # no released rows to take noiseless steps on
    assert effort("apvi_icu_sepsis").rounds == 1


def test_restarts_go_on_side_by_side(effort) -> None:
    one, two, four = (
        effort("primorl_pendulum", f"training.policy.restarts={count}", "runtime.workers=2")
        for count in (1, 2, 4)
    )
    assert one == two
    assert four.learned_steps == 2 * one.learned_steps


def test_a_policy_without_known_columns_has_no_work(tmp_path: Path) -> None:
    path = tmp_path / "value.yaml"
    path.write_text(VALUE.replace(", environment: CartPole-v1", ""))
    assert plan_run(load_config(path, [])).effort is None
