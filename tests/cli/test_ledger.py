import json
from typing import get_args, get_type_hints

from distributed_privrl.cli import ledger
from distributed_privrl.privacy.units import Relation


def test_show_has_the_budget_and_the_charge(finished):
    place = finished.workplace
    certificate = json.loads((finished.out / "certificate.json").read_text())
    shown = json.loads(place.privrl("ledger", "show", "clinic/stays-v0", "--json").stdout)
    (account,), (entry,) = shown["accounts"], shown["entries"]
    assert account["epsilon"] == 8
    assert account["spent_epsilon"] == entry["epsilon"] == certificate["epsilon"]
    assert entry["id"] in certificate["ledger_entries"]
    words = place.privrl("ledger", "show").stdout
    assert entry["id"] in words
    assert f"{entry['epsilon']:.6g} of 8" in words


def test_fingerprints_stay_in_the_ledger(finished):
    from distributed_privrl.privacy.ledger import Ledger

    opened = Ledger(finished.workplace.ledger)
    fingerprint = opened.accounts()[0].fingerprint
    opened.close()
    for arguments in ((), ("--json",)):
        assert fingerprint not in finished.workplace.privrl("ledger", "show", *arguments).output


def test_show_of_an_unknown_dataset_lists_the_known(finished):
    result = finished.workplace.privrl("ledger", "show", "clinic/other-v0")
    assert result.exit_code == 2
    assert "clinic/stays-v0" in result.stderr


def test_show_of_an_empty_ledger(workplace):
    assert workplace.privrl("ledger", "show").stdout.startswith("no budget is set")
    empty = json.loads(workplace.privrl("ledger", "show", "--json").stdout)
    assert empty == {"accounts": [], "entries": []}


def test_budget_refusals(finished):
    budget = ("ledger", "budget", "clinic/stays-v0", "--delta", "1e-5", "--unit")
    place = finished.workplace
    assert (
        place.privrl(*budget, "transition", "--epsilon", "1").exit_code == 3
    )  # below what is spent
    assert place.privrl(*budget, "trajectory", "--epsilon", "8").exit_code == 4  # another unit
    assert place.privrl(*budget, "patient", "--epsilon", "8").exit_code == 2  # no such column
    assert place.privrl(*budget, "transition", "--epsilon", "-1").exit_code == 2
    missing = place.privrl(
        *("ledger", "budget", "clinic/other-v0", "--epsilon", "1"),
        *("--delta", "1e-6", "--unit", "transition"),
    )
    assert missing.exit_code == 2


def test_a_budget_can_be_raised_in_another_ledger(finished, tmp_path):
    url = f"sqlite:///{tmp_path / 'other.sqlite'}"
    line = ("ledger", "budget", "clinic/stays-v0", "--delta", "1e-6", "--unit", "trajectory")
    for epsilon in (2, 4):
        result = finished.workplace.privrl(*line, "--epsilon", epsilon, "--ledger", url)
        assert result.exit_code == 0, result.output
        assert f"epsilon {epsilon} and delta 1e-06 for each trajectory" in result.stdout
    shown = json.loads(
        finished.workplace.privrl("ledger", "show", "--json", "--ledger", url).stdout
    )
    assert [account["epsilon"] for account in shown["accounts"]] == [4]
    lowered = finished.workplace.privrl(*line, "--epsilon", 3, "--ledger", url)
    assert lowered.exit_code == 0
    assert "goes down from epsilon 4 and delta 1e-06 to 3" in lowered.stderr


def test_every_relation_can_be_given():
    offered = get_type_hints(ledger.set_budget, include_extras=False)["relation"]
    assert set(get_args(offered)) == {relation.value for relation in Relation}
