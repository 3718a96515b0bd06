import csv
import json

import numpy as np

from distributed_privrl.cli import datasets

SCHEMA = """
columns: {observation: [x, y], action: move, reward: r, terminated: over, trajectory: stay}
spaces:
  observation: {type: box, low: -1, high: 1}
  action: {type: discrete, n: 2}
"""
TABLE = "stay,x,y,move,r,over\na,0,0,1,0.5,0\na,0.5,0,0,1,1\nb,-1,1,1,0,1\n"


def test_import_then_export(workplace):
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE)
    schema.write_text(SCHEMA)
    made = workplace.privrl("import", table, "--schema", schema, "--dataset", "clinic/stays-v0")
    assert made.exit_code == 0, made.output
    assert made.stdout == "clinic/stays-v0: 3 transitions in 2 trajectories\n"
    out = workplace.folder / "out.csv"
    line = ("export", "clinic/stays-v0", "--format", "csv", "--out", out)
    assert workplace.privrl(*line).exit_code == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["r"]) for row in rows] == [0.5, 1.0, 0.0]
    assert list(rows[0])[:6] == ["stay", "step", "x", "y", "move", "r"]  # as it was imported
    assert workplace.privrl(*line).exit_code == 2  # never overwrites
    other, named = workplace.folder / "other.yaml", workplace.folder / "named.csv"
    other.write_text(SCHEMA.replace("[x, y]", "[east, north]"))
    line = ("export", "clinic/stays-v0", "--format", "csv", "--out", named, "--schema", other)
    assert workplace.privrl(*line).exit_code == 0
    with named.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:6] == ["stay", "step", "east", "north", "move", "r"]
    assert [row["stay"] for row in rows] == ["0", "0", "1"]
    own = workplace.folder / "own.csv"
    line = ("export", "clinic/stays-v0", "--format", "csv", "--rows-only", "--out", own)
    assert workplace.privrl(*line).exit_code == 0
    assert own.read_text().splitlines()[0] == "stay,step,x,y,move,r,over,unit"
    line = ("export", "clinic/stays-v0", "--format", "hf-dataset", "--rows-only", "--out", "x")
    refused = workplace.privrl(*line)
    assert refused.exit_code == 2
    assert "--rows-only leaves out columns of csv and parquet" in refused.stderr
    line = ("import", named, "--schema", other, "--dataset", "clinic/again-v0")
    assert workplace.privrl(*line).exit_code == 0
    line = ("export", "clinic/stays-v0", "--format", "rllib", "--schema", schema)
    refused = workplace.privrl(*line, "--out", workplace.folder / "bridge")
    assert refused.exit_code == 2
    assert "--schema names the columns of tables" in refused.stderr


D4RL = """
columns:
  observation: observations
  action: actions
  reward: rewards
  terminated: terminals
  truncated: timeouts
  next_observation: next_observations
spaces:
  observation: {type: box, low: -1, high: 1}
  action: {type: discrete, n: 2}
split_at_flags: true
"""


def test_arrays_go_out_and_come_in_again(workplace):
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE)
    schema.write_text(SCHEMA)
    line = ("import", table, "--schema", schema, "--dataset", "clinic/stays-v0")
    assert workplace.privrl(*line).exit_code == 0
    out, again = workplace.folder / "out.npz", workplace.folder / "again.npz"
    line = ("export", "clinic/stays-v0", "--format", "npz", "--out", out)
    assert workplace.privrl(*line).exit_code == 0
    schema.write_text(D4RL)
    made = workplace.privrl("import", out, "--schema", schema, "--dataset", "clinic/again-v0")
    assert made.stdout == "clinic/again-v0: 3 transitions in 2 trajectories\n", made.output
    workplace.privrl("export", "clinic/again-v0", "--format", "npz", "--out", again)
    with np.load(out) as first, np.load(again) as second:
        assert list(first) == [*second, "unit"]  # what is split at flags has no names
        assert all(np.array_equal(first[name], second[name]) for name in second)


def test_exact_numbers_of_an_import_go_to_its_owner_and_nowhere_else(workplace):
    schema, metadata = workplace.folder / "schema.yaml", []
    schema.write_text(SCHEMA)
    tables = {"live": TABLE.replace("b,-1,1,1,0,1", "b,-1,1,1,0,0"), "gap": TABLE + "b,0,,1,0,1\n"}
    notes = {
        "live": [
            "last rows: nothing known of what follows in 1 row of 1 trajectory; their actions and"
            " rewards are left out: name next_observation, or, where a trajectory is complete with"
            " its last row, terminated: last",
            "last rows: all that their trajectory has in 1 row of 1 trajectory; their trajectories"
            " are left out",
            "last rows: all that is left of whose they are in 1 row of 1 trajectory; nothing of any"
            " such trajectory arrives",
        ],
        "gap": [
            "y: no value in 1 row of 1 trajectory; these are null rows, which methods leave out:"
            " declare kinds.y.missing to keep them"
        ],
    }
    for name, lines in notes.items():
        table, dataset = workplace.folder / f"{name}.csv", f"clinic/{name}-v0"
        table.write_text(tables[name])
        made = workplace.privrl("import", table, "--schema", schema, "--dataset", dataset)
        assert made.exit_code == 0, made.output
        assert made.stderr.splitlines() == [f"note to the owner: {line}" for line in lines]
        assert "note" not in made.stdout
        folder = workplace.datasets / dataset / "data"
        metadata.append(json.loads((folder / "metadata.json").read_text()))
    ours = [one.pop("distributed_privrl") for one in metadata]
    assert [one.pop("total_trajectories") for one in ours] == [1, 2]
    assert ours[0] == ours[1]
    sizes = ("dataset_id", "total_steps", "total_episodes", "dataset_size")
    left = [{key: one[key] for key in one if key not in sizes} for one in metadata]
    assert left[0] == left[1], "of what was found, nothing is written"


def test_the_owner_of_many_short_trajectories_hears_that_episodes_are_slow(workplace, monkeypatch):
    monkeypatch.setattr(datasets, "_MANY_TRAJECTORIES", 1)
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE)
    heard = []
    for layout in ("episodes", "packed"):
        schema.write_text(f"{SCHEMA}layout: {layout}\n")
        line = ("import", table, "--schema", schema, "--dataset", f"clinic/{layout}-v0")
        made = workplace.privrl(*line)
        assert made.exit_code == 0, made.output
        heard.append(made.stderr)
    assert "note to the owner: 2 short trajectories as episodes" in heard[0]
    assert "layout: packed" in heard[0]
    assert heard[1] == ""


def test_an_import_without_gaps_says_nothing(workplace):
    table, schema = workplace.folder / "named.csv", workplace.folder / "schema.yaml"
    named = SCHEMA.replace("trajectory: stay", "trajectory: stay, next_observation: [x, y]")
    schema.write_text(named)
    table.write_text(TABLE.splitlines()[0] + "\na,0,0,1,0.5,0\nb,-1,1,1,0,1\n")
    made = workplace.privrl("import", table, "--schema", schema, "--dataset", "clinic/named-v0")
    assert made.exit_code == 0, made.output
    assert (made.stdout, made.stderr) == (
        "clinic/named-v0: 2 transitions in 2 trajectories\n",
        "",
    )


def test_import_names_the_wrong_column(workplace):
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE.replace("move", "step"))
    schema.write_text(SCHEMA)
    result = workplace.privrl("import", table, "--schema", schema, "--dataset", "clinic/stays-v0")
    assert result.exit_code == 2
    assert "move" in result.stderr
    assert not workplace.datasets.exists() or not list(workplace.datasets.iterdir())


def test_a_schema_that_lacks_a_key_is_one_short_line(workplace):
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE)
    schema.write_text(SCHEMA.replace("trajectory: stay", "unit: stay"))
    result = workplace.privrl("import", table, "--schema", schema, "--dataset", "clinic/stays-v0")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {schema}: split_at_flags=False: without a trajectory column or split_at_flags,"
        " columns.next_observation must be named, or none where nothing follows a row\n"
    )


def test_collect_refuses_unknown_recipes_and_options(workplace):
    unknown = workplace.privrl("collect", "chess", "--dataset", "a-v0")
    assert unknown.exit_code == 2
    assert "maze2d-umaze" in unknown.stderr
    option = workplace.privrl("collect", "maze2d-umaze", "--dataset", "a-v0", "-o", "colour=red")
    assert option.exit_code == 2
    assert "colour" in option.stderr


def test_help_lists_the_recipes(workplace):
    from distributed_privrl.collection import RECIPES

    text = "".join(workplace.privrl("collect", "--help").stdout.split())
    assert all(name.removesuffix("-dense") in text for name in RECIPES)


def test_collect_is_deterministic_in_its_seed(finished, workplace):
    line = ("collect", "maze2d-umaze", "--dataset", "clinic/stays-v0", "--steps", 400, "--seed")
    export = ("export", "clinic/stays-v0", "--format", "csv", "--out")
    assert workplace.privrl(*line, 1).exit_code == 0
    workplace.privrl(*export, workplace.folder / "here.csv")
    finished.workplace.privrl(*export, workplace.folder / "there.csv")
    here, there = ((workplace.folder / name).read_text() for name in ("here.csv", "there.csv"))
    assert here == there


def test_a_dataset_is_split_by_units(workplace):
    made = workplace.privrl(
        *("collect", "maze2d-umaze", "--dataset", "maze/all-v0", "--steps", 1200)
    )
    assert made.exit_code == 0, made.output
    result = workplace.privrl("split", "maze/all-v0", "--held-out", 0.5)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [  # no counts: numbers of units may be private
        "maze/all-training-v0: each trajectory with probability 0.5",
        "maze/all-held-out-v0: each trajectory with probability 0.5",
    ]
    refused = workplace.privrl("split", "maze/all-v0", "--held-out", 1.3)
    assert refused.exit_code == 2
    assert "--held-out=1.3 must" in refused.stderr
    again = workplace.privrl("split", "maze/all-v0", "--held-out", 0.5)
    assert again.exit_code == 2
    assert "`privrl remove maze/all-held-out-v0`" in again.stderr


def test_a_dataset_is_removed_and_its_account_stays(workplace):
    table, schema = workplace.folder / "stays.csv", workplace.folder / "schema.yaml"
    table.write_text(TABLE)
    schema.write_text(SCHEMA)
    again = ("import", table, "--schema", schema, "--dataset")
    assert workplace.privrl(*again, "clinic/stays-v0").exit_code == 0
    budget = ("--epsilon", 2, "--delta", "1e-5", "--unit", "trajectory")
    assert workplace.privrl("ledger", "budget", "clinic/stays-v0", *budget).exit_code == 0
    shown = workplace.privrl("ledger", "show", "--json").stdout
    removed = workplace.privrl("remove", "clinic/stays-v0")
    assert removed.stdout == (
        "clinic/stays-v0: removed; its account stays, with epsilon 2 of 2 and delta 1e-05 of 1e-05"
        " left\n"
    )
    assert not [path for path in workplace.datasets.rglob("*") if path.is_file()]
    assert workplace.privrl("ledger", "show", "--json").stdout == shown
    gone = workplace.privrl("remove", "clinic/stays-v0")
    assert gone.exit_code == 2
    assert "no dataset 'clinic/stays-v0'" in gone.stderr
    assert workplace.privrl(*again, "clinic/other-v0").exit_code == 0
    refused = workplace.privrl("ledger", "budget", "clinic/other-v0", *budget)
    assert refused.exit_code == 4
    assert "already have a budget as clinic/stays-v0" in refused.stderr
    removed = workplace.privrl("remove", "clinic/other-v0")
    assert removed.stdout == "clinic/other-v0: removed\n"


def test_what_a_run_read_or_released_is_not_removed(finished):
    place = finished.workplace
    for dataset, said in (
        ("clinic/stays-v0", "report, sample and audit of a run that was charged as run-"),
        ("clinic/private-v0", "it is the release of a run"),
    ):
        refused = place.privrl("remove", dataset)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert "--anyway removes it all the same" in refused.stderr


def test_rllib_gets_public_rows_alone(workplace):
    line = ("collect", "cartpole-mixed", "--steps", 60, "--dataset")
    assert workplace.privrl(*line, "gym/own-v0").exit_code == 0
    assert workplace.privrl(*line, "gym/public-v0", "--public").exit_code == 0
    out = workplace.folder / "bridge"
    export = ("export", "--format", "rllib", "--out", out, "--seed", 2)
    refused = workplace.privrl(*export, "gym/own-v0")
    assert refused.exit_code == 4
    assert "was not declared public" in refused.stderr
    assert not out.exists()
    assert workplace.privrl(*export, "gym/public-v0").stdout == f"{out}\n"
    assert {path.suffix for path in out.iterdir()} == {".parquet", ".json"}
    assert workplace.privrl(*export, "gym/public-v0").exit_code == 2  # never overwrites


def test_collect_counts_experts_and_their_trajectories(workplace):
    line = ("collect", "experts-cartpole", "--dataset", "e/some-v0", "--experts", 3)
    training = ("-o", "training={updates: 1, least_updates: 1, environments: 2}")
    made = workplace.privrl(*line, "--trajectories", 2, *training, "-o", "reference_episodes=2")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.endswith(" steps in 6 trajectories\n")
    refused = workplace.privrl("collect", "gridworld", "--dataset", "a-v0", "--experts", 3)
    assert refused.exit_code == 2
    assert "experts" in refused.stderr


def test_import_of_documents(workplace):
    corpus, schema = workplace.folder / "notes.jsonl", workplace.folder / "notes.yaml"
    corpus.write_text('{"text": "one", "author": "a"}\n{"text": "two", "author": "b"}\n')
    schema.write_text("text: {unit: author}\n")
    made = workplace.privrl("import", corpus, "--schema", schema, "--dataset", "clinic/notes-v0")
    assert made.exit_code == 0
    assert made.stdout == "clinic/notes-v0: 2 documents\n"
    assert made.stderr == "note to the owner: the documents are of 2 values of author\n"
    budget = ("--epsilon", 1, "--delta", 1e-6, "--unit", "author")
    assert workplace.privrl("ledger", "budget", "clinic/notes-v0", *budget).exit_code == 0
    schema.write_text("text: {author: a}\n")
    wrong = workplace.privrl("import", corpus, "--schema", schema, "--dataset", "clinic/more-v0")
    assert wrong.exit_code == 2
    assert "author" in wrong.stderr


def test_the_owner_of_documents_is_told_which_are_left_out(workplace):
    corpus, schema = workplace.folder / "notes.jsonl", workplace.folder / "notes.yaml"
    corpus.write_text('{"text": "one", "author": "a"}\n{"text": "secret"}\n{"author": "a"}\n')
    schema.write_text("text: {unit: author}\n")
    line = ("import", corpus, "--schema", schema, "--dataset")
    made = workplace.privrl(*line, "clinic/notes-v0")
    assert made.stdout == "clinic/notes-v0: 1 document\n"
    assert made.stderr.splitlines() == [
        "note to the owner: the documents are of 1 value of author",
        "note to the owner: nobody named under 'author' in 1 row; left out",
        "note to the owner: no text under 'text' in 1 row; left out",
    ]
    schema.write_text("text: {column: txt}\n")
    wrong = workplace.privrl(*line, "clinic/more-v0")
    assert wrong.exit_code == 2
    assert "holds no document that can be read: no text under 'txt'" in wrong.stderr
    draft = workplace.privrl("init", corpus)
    assert draft.exit_code == 2
    assert "documents need no draft" in draft.stderr
