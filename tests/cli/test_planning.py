import json

import pytest

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import PoissonGaussianEvent
from tests.data.conftest import SPACES, walk
from tests.docs.pages import ROOT


@pytest.fixture
def no_data(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("plan opened a dataset")

    for name in ("_chunks", "iter_transitions", "iter_trajectories", "_episodes"):
        monkeypatch.setattr(DatasetStore, name, refuse)


def test_plan_opens_no_data_and_its_epsilon_follows_from_its_noise(workplace, no_data):
    result = workplace.privrl("plan", workplace.config, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["sampling_probability"] == 16 / 400
    assert facts["unit_gradients"] == 3 * 16
    for rounds, name in ((3, "epsilon"), (4, "epsilon_with_spare")):
        event = PoissonGaussianEvent(
            sampling_probability=16 / 400, noise_multiplier=facts["noise_multiplier"], count=rounds
        )
        certified = epsilon([event], delta=1e-5, relation=facts["relation"], accountant="pld")
        assert facts[name] == pytest.approx(certified, rel=1e-3)
    assert facts["epsilon"] < facts["epsilon_with_spare"] <= facts["epsilon_limit"] == 8
    assert not (workplace.folder / "ledger.sqlite").exists()


def test_plan_in_words_has_noise_cost_and_the_budget_line(workplace, no_data, understands):
    result = workplace.privrl(
        "plan", workplace.config, "-o", "training.rounds=2", "-o", "privacy.accountant=rdp"
    )
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert lines["rounds"].startswith("2 + 1 spare")
    assert lines["noise"].startswith("multiplier ")
    assert lines["cost"] == "32 gradients of units"
    assert understands(lines["budget"])
    assert "--epsilon 8 --delta 1e-05 --unit transition" in lines["budget"]


def test_a_plan_refuses_agents_that_a_run_would_refuse(workplace, no_data):
    result = workplace.privrl("plan", workplace.config, "-o", "evaluation.trainers=[iql]")
    assert result.exit_code == 2
    assert "evaluation.trainers needs data.environment" in result.output


@pytest.mark.parametrize("units", ["400", "null"])
def test_a_plan_refuses_a_unit_that_the_dataset_does_not_know(workplace, no_data, units):
    asked = ("-o", "data.unit=patient", "-o", f"data.units={units}")
    assert workplace.privrl("plan", workplace.config, *asked).exit_code == 0  # nothing tells
    DatasetStore(workplace.datasets).write_trajectories("clinic/stays-v0", walk(), **SPACES)
    refused = workplace.privrl("plan", workplace.config, *asked)
    assert refused.exit_code == 2
    assert "has no unit 'patient': it knows transition, trajectory" in refused.output


def test_a_plan_without_privacy_is_loud(workplace, no_data):
    result = workplace.privrl("plan", workplace.config, "-o", "privacy.epsilon=null")
    assert result.exit_code == 0
    assert "NOT PRIVATE" in result.stderr
    assert "noise" not in result.stdout
    facts = json.loads(
        workplace.privrl("plan", workplace.config, "-o", "privacy.epsilon=null", "--json").stdout
    )
    assert facts["private"] is False
    assert "epsilon" not in facts


def test_a_plan_of_counted_units_says_what_to_give(workplace, no_data):
    result = workplace.privrl("plan", workplace.config, "-o", "data.units={epsilon: 0.1}")
    assert result.exit_code == 0, result.output
    assert "-o data.units=" in result.stderr
    assert "is to be counted with noise" in result.stderr


def test_a_plan_without_a_number_of_units_shows_what_several_would_mean(workplace, no_data):
    bounds = workplace.folder / "bounds.yaml"
    bounds.write_text(
        "observation: {low: [0, 0], high: [9, 9]}\naction: {low: [0], high: [1]}\nreward: [0, 1]\n"
    )
    changed = ("-o", "data.units=null", "-o", f"data.bounds={bounds}", "-o", "data.public=[]")
    changed += ("-o", "training.pretraining.steps=0", "-o", "privacy.accountant=rdp")
    shown = workplace.privrl("plan", workplace.config, *changed)
    assert shown.exit_code == 0, shown.output
    header, *lines = shown.stdout.splitlines()
    assert header.split()[0] == "units"
    assert header.split()[-1] == "verdict"
    grades = {line.split()[0]: line for line in lines if line}
    assert [grades[units].split()[-1] for units in ("100", "10,000")] == ["hopeless", "limited"]
    assert "refused: delta=1e-05 is not below 1/units" in grades["1,000,000"]
    assert lines[-1].startswith("take marginals: nobody has public rows")
    assert "data.units is not declared" in shown.stderr
    facts = json.loads(workplace.privrl("plan", workplace.config, *changed, "--json").stdout)
    assert [one["units"] for one in facts["by_units"]] == [100, 1000, 10_000, 100_000, 1_000_000]
    first = facts["by_units"][0]["verdict"]
    assert first["figures"]["weights"] > 100
    assert facts["advice"]["method"] == "marginals"


def test_a_plan_that_knows_no_columns_says_what_to_give(workplace, no_data):
    bounds = workplace.folder / "wide.yaml"
    bounds.write_text("observation: {low: -9, high: 9}\nreward: [0, 1]\n")
    blind = ["-o", "data.sensitive=clinic/none-v0", "-o", "data.public=[]"]
    blind += ["-o", f"data.bounds={bounds}", "-o", "training.pretraining.steps=0"]
    shown = workplace.privrl("plan", workplace.config, *blind)
    lines = dict(line.split(None, 1) for line in shown.stdout.splitlines())
    assert not {"time", "verdict"} & {*lines}
    assert lines["columns"].startswith("nothing public tells them, so neither minutes nor")
    assert "data.bounds file that lists" in lines["columns"]
    counted = workplace.privrl("plan", workplace.config, *blind, "-o", "data.units=null")
    assert "\ncolumns: nothing public tells them" in counted.stdout
    bounds.write_text("observation: {low: [-9, 0], high: [9, 1]}\nreward: [0, 1]\n")
    told = workplace.privrl("plan", workplace.config, *blind, "-o", "data.bounds=" + str(bounds))
    lines = dict(line.split(None, 1) for line in told.stdout.splitlines())
    assert "columns" not in lines
    assert {"time", "verdict"} <= {*lines}


def test_a_plan_and_a_validation_say_what_they_did_not_check(workplace, no_data):
    for words in (("plan", workplace.config), ("config", "validate", workplace.config)):
        shown = workplace.privrl(*words)
        assert shown.exit_code == 0, shown.output
        assert "not checked: the datasets themselves" in shown.stderr


def test_a_plan_states_what_bounds_cost(workplace, no_data):
    wide = workplace.folder / "wide.yaml"
    wide.write_text("observation: {low: -9, high: 9}\nreward: [0, 1]\n")
    override = f"data.bounds={{epsilon: 1.5, search: {wide}, parts: [observation]}}"
    facts, without = (
        json.loads(workplace.privrl("plan", workplace.config, *words, "--json").stdout)
        for words in (("-o", override), ())
    )
    assert facts["bounds"]["epsilon"] == 1.5
    assert "bounds" not in without
    assert facts["noise_multiplier"] > without["noise_multiplier"]
    assert facts["epsilon"] < facts["epsilon_with_spare"] <= facts["epsilon_limit"] == 8
    for rounds, name in ((3, "epsilon"), (4, "epsilon_with_spare")):  # bounds and rounds add up
        event = PoissonGaussianEvent(
            sampling_probability=16 / 400, noise_multiplier=facts["noise_multiplier"], count=rounds
        )
        of_rounds = epsilon([event], delta=1e-5, relation=facts["relation"], accountant="pld")
        assert facts[name] == pytest.approx(1.5 + of_rounds, rel=1e-3)
    words = workplace.privrl("plan", workplace.config, "-o", override).stdout
    lines = dict(line.split(None, 1) for line in words.splitlines())
    assert lines["bounds"].startswith("epsilon 1.5 before the rounds")
    assert lines["epsilon"].startswith(f"{facts['epsilon']:.4f} after 3 rounds")
    assert lines["epsilon"].endswith("8 is held meanwhile, 1.5 for the bounds included")
    assert "0.05 and 0.95 of observation" in lines["bounds"]
    refused = workplace.privrl(
        "plan", workplace.config, "-o", f"data.bounds={{epsilon: 8, search: {wide}}}"
    )
    assert refused.exit_code == 2
    assert "used up" in refused.stderr


def test_a_plan_in_words_names_the_samples_beside_the_units(workplace, no_data):
    line = ["plan", workplace.config, "-o", "privacy.epsilon=null", "-o", "training.rounds=2"]
    plain, curious = (
        workplace.privrl(*line, "-o", f"training.curiosity_rate={rate}").stdout
        for rate in (0, 0.25)
    )
    assert "16 units on average, each with probability 0.04\n" in plain
    assert (
        "12 units on average, each with probability 0.03, and 4 samples of the model\n" in curious
    )


def test_a_plan_in_words_has_a_policy_s_files_and_what_its_starts_cost(workplace, no_data):
    path = ROOT / "tune_configs" / "primorl_pendulum.yaml"
    shown = workplace.privrl("plan", path, "-o", "training.policy.starts={epsilon: 0.25}")
    lines = dict(line.split(None, 1) for line in shown.stdout.splitlines())
    assert lines["output"] == "policy.safetensors, policy.pt, ensemble.safetensors"
    assert lines["epsilon"].endswith("1 is held meanwhile, 0.25 for the starts included")
    mopo = workplace.privrl("plan", ROOT / "tune_configs" / "mopo_pendulum.yaml")
    assert "private/policy.safetensors, private/policy.pt" in mopo.stdout


@pytest.mark.parametrize(
    "name",
    [
        "primorl_pendulum",
        "mopo_pendulum",
        "expert_cartpole",
        "apvi_icu_sepsis",
        "vapvi_linear_mdp",
        "policy_value",
    ],
)
def test_a_plan_of_a_policy_has_minutes(workplace, no_data, name):
    path = ROOT / "tune_configs" / f"{name}.yaml"
    if name == "policy_value":
        path = workplace.folder / "value.yaml"
        path.write_text(
            "method: policy_value\n"
            "data: {sensitive: ward/a-v0, unit: patient, units: 900, environment: CartPole-v1}\n"
            "privacy: {epsilon: 1}\n"
            "model: {release: ward/b-v0, returns: [0, 1], horizon: 20}\n"
        )
    shown = workplace.privrl("plan", path, "--json")
    assert shown.exit_code == 0, shown.output
    time = json.loads(shown.stdout)["time"]
    low, high = time["minutes_between"]
    assert 0 < low < time["minutes"] < high < 100


@pytest.mark.parametrize(
    "override",
    [
        "privacy.epsilon=1e-300",
        "privacy.epsilon=1e300",
        "privacy.delta=1e-300",
        "training.rounds=1000000000000",
        "data.units=1000000000000000000000",
    ],
)
def test_numbers_beyond_what_accountants_take_are_refused(workplace, no_data, override):
    result = workplace.privrl("plan", workplace.config, "-o", override)
    assert result.exit_code == 2
    assert override.partition("=")[0] in result.output
