import contextlib
import csv
import io
import json
import shutil
import socket
from typing import get_args, get_type_hints

from distributed_privrl.cli import ledger
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import Relation
from tests.worlds.ledgers import holding, open_run, set_budget
from tests.worlds.opened import opened


def test_show_has_the_budget_and_the_charge(finished):
    place = finished.workplace
    certificate = json.loads((finished.out / "certificate.json").read_text())
    shown = json.loads(place.privrl("ledger", "show", "clinic/stays-v0", "--json").stdout)
    (account,), (entry,) = shown["accounts"], shown["entries"]
    assert account["epsilon"] == 8
    assert account["spent_epsilon"] == entry["epsilon"] == certificate["epsilon"]
    assert entry["id"] in certificate["ledger_entries"]
    shown = place.privrl("ledger", "show")
    assert shown.stderr == ""
    words = shown.stdout
    assert entry["id"] in words
    assert " released " in words
    assert f"{entry['epsilon']:.6g} of 8" in words


def test_export_says_who_spent_what_and_when(finished, tmp_path):
    place = finished.workplace
    written = place.privrl("ledger", "export", "clinic/stays-v0")
    (charge,) = csv.DictReader(io.StringIO(written.stdout))
    (entry,) = json.loads(place.privrl("ledger", "show", "--json").stdout)["entries"]
    assert float(charge["epsilon"]) == entry["epsilon"]
    assert charge["made_by"].endswith(f"@{socket.gethostname()}")
    assert {name: charge[name] for name in ("id", "created", "dataset", "unit", "kind")} == {
        **{"id": entry["id"], "created": entry["created"], "dataset": "clinic/stays-v0"},
        **{"unit": "transition", "kind": "rounds"},
    }
    assert charge["made_by"] in place.privrl("ledger", "show").stdout
    file = tmp_path / "charges.csv"
    assert place.privrl("ledger", "export", "--out", file).exit_code == 0
    assert file.read_text() == written.stdout
    assert place.privrl("ledger", "export", "--out", file).exit_code == 2


def test_export_has_holds_and_nothing_of_rows_or_secrets(workplace):
    with contextlib.closing(Ledger(workplace.ledger)) as opened:
        set_budget(opened)
        opened.open_hold(holding("held", epsilon=2.0))
    (hold,) = csv.DictReader(io.StringIO(workplace.privrl("ledger", "export").stdout))
    assert (hold["id"], hold["kind"], hold["status"], hold["epsilon"]) == (
        *("held", "hold", "open"),
        "2.0",
    )
    assert hold["relation"] == "replace_with_null"
    assert not {"fingerprint", "partition", "secret", "answer", "event"} & set(hold)


def test_fingerprints_stay_in_the_ledger(finished):
    from distributed_privrl.privacy.ledger import Ledger

    opened = Ledger(finished.workplace.ledger)
    account = opened.accounts()[0]
    opened.close()
    for arguments in ((), ("--json",)):
        shown = finished.workplace.privrl("ledger", "show", *arguments).output
        assert account.fingerprint not in shown
        assert account.partition not in shown


def test_show_of_an_unknown_dataset_lists_the_known(finished):
    result = finished.workplace.privrl("ledger", "show", "clinic/other-v0")
    assert result.exit_code == 2
    assert "clinic/stays-v0" in result.stderr


def test_show_of_an_empty_ledger(workplace):
    assert workplace.privrl("ledger", "show").stdout.startswith("no budget is set")
    empty = json.loads(workplace.privrl("ledger", "show", "--json").stdout)
    assert empty == {"accounts": [], "entries": [], "holds": [], "declarations": []}


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


def test_a_run_that_was_given_up_is_settled(finished, tmp_path):
    from distributed_privrl.privacy.ledger import Ledger
    from distributed_privrl.privacy.ledger.records import Holding
    from distributed_privrl.privacy.units import PrivacyBudget

    url = f"sqlite:///{tmp_path / 'other.sqlite'}"
    opened = Ledger(url)
    same = {"dataset": "clinic/stays-v0", "fingerprint": "f"}
    opened.set_budget(**same, budget=PrivacyBudget(epsilon=8, delta=1e-5, unit="transition"))
    cost = {"unit": "transition", "relation": Relation.REPLACE_WITH_NULL, "units": None}
    opened.open_hold(Holding(run_id="run-1", epsilon=3.0, delta=1e-6, **same, **cost))
    opened.close()
    place, where = finished.workplace, ("--ledger", url)
    words = place.privrl("ledger", "show", *where).stdout
    assert "run-1" in words
    assert "held" in words
    (hold,) = json.loads(place.privrl("ledger", "show", "--json", *where).stdout)["holds"]
    assert (hold["run_id"], hold["epsilon"]) == ("run-1", 3.0)
    said = place.privrl("ledger", "settle", "run-1", *where).stdout
    assert said.startswith("run-1: epsilon 3 and delta 1e-06 are free again")
    assert "held" not in place.privrl("ledger", "show", *where).stdout
    assert place.privrl("ledger", "settle", "run-1", *where).exit_code == 4


def test_a_run_that_has_begun_is_closed_once_its_owner_says_so(finished, tmp_path):
    from distributed_privrl.privacy.ledger import Ledger

    url = f"sqlite:///{tmp_path / 'other.sqlite'}"
    with contextlib.closing(Ledger(url)) as opened:
        set_budget(opened)
        open_run(opened, "run-1")
        opened.reserve_rounds("run-1", rounds=3, nonce="a")
    place, line = finished.workplace, ("ledger", "settle", "run-1", "--ledger", url)
    shown = place.privrl("ledger", "show", "--ledger", url)
    assert " open " in shown.stdout
    assert shown.stderr.endswith("charges nothing more\n")
    refused = place.privrl(*line)  # nobody answers
    assert refused.exit_code == 1
    assert "run-1 has begun, and could not be resumed. Close it?" in refused.output
    said = place.privrl(*line, "--yes")
    assert "epsilon 0 and delta 0 are free again, 4 and 1e-06 stay charged" in said.stdout
    assert " drawn, not released " in place.privrl("ledger", "show", "--ledger", url).stdout
    shown = json.loads(place.privrl("ledger", "show", "--json", "--ledger", url).stdout)
    assert shown["accounts"][0]["spent_epsilon"] == 4
    assert place.privrl(*line, "--yes").exit_code == 4


def test_what_is_declared_unrelated_is_written_down_and_shown(finished, tmp_path):
    place, url = finished.workplace, f"sqlite:///{tmp_path / 'other.sqlite'}"
    store = DatasetStore(place.datasets)
    info = store.info("clinic/stays-v0")
    half_of_them = range(opened(info.total_trajectories) // 2)
    store.write_trajectories(
        "clinic/half-v0",
        store.read_trajectories("clinic/stays-v0").select(half_of_them),
        observation_space=info.observation_space,
        action_space=info.action_space,
    )
    line = ("--delta", "1e-6", "--epsilon", 2, "--unit", "trajectory", "--ledger", url)
    assert place.privrl("ledger", "budget", "clinic/stays-v0", *line).exit_code == 0
    half = ("ledger", "budget", "clinic/half-v0", *line)
    refused = place.privrl(*half)
    assert refused.exit_code == 4
    assert "use clinic/stays-v0" in refused.stderr
    declared = ("--unrelated-to", "clinic/stays-v0")
    assert place.privrl(*half, *declared).exit_code == 2  # no reason
    assert place.privrl(*half, "--why", "ours").exit_code == 2  # of what
    done = place.privrl(*half, *declared, "--why", "other  people")
    assert done.exit_code == 0, done.output
    assert "declared unrelated: other" in done.stderr
    shown = place.privrl("ledger", "show", "--ledger", url)
    assert "other people" in shown.stdout
    (said,) = json.loads(place.privrl("ledger", "show", "--json", "--ledger", url).stdout)[
        "declarations"
    ]
    made = said.pop("made")
    assert said == {
        "dataset": "clinic/half-v0",
        "unrelated_to": "clinic/stays-v0",
        "why": "other people",
    }
    assert made.startswith("20")
    shutil.rmtree(store.root / "clinic" / "half-v0")


def test_a_budget_whose_delta_no_number_of_units_allows_is_refused(finished):
    budget = ("ledger", "budget", "clinic/stays-v0", "--epsilon", "8", "--unit", "transition")
    refused = finished.workplace.privrl(*budget, "--delta", "0.5")
    assert refused.exit_code == 4, refused.output
    assert "for any number of units" in refused.stderr
    assert "1e-5 for up to 10,000 units" in refused.stderr
    assert finished.workplace.privrl(*budget, "--delta", "0.4").exit_code == 0
