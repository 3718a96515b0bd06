import re

ROWS = "visit,who,age,ward,dose,gain\n" + "".join(
    f"{i % 3},w{i // 3},{40 + i / 8},ward{i % 2},{i % 4},{i / 16}\n" for i in range(30)
)


def test_init_drafts_three_files_and_tells_the_owner_alone(workplace):
    table, out = workplace.folder / "ward.csv", workplace.folder / "drafts"
    table.write_text(ROWS)
    made = workplace.privrl("init", table, "--out", out, "--unit", "who")
    assert made.exit_code == 0, made.output
    files = [out / name for name in ("schema.yaml", "bounds.yaml", "config.yaml")]
    assert made.stdout.splitlines()[:3] == list(map(str, files))
    assert made.stderr.startswith("for the owner of the table alone, do not publish it:\n  30 rows")
    assert "rows of one who: 3 in the middle, 3 at most" in made.stderr
    written = "".join([*(path.read_text() for path in files), made.stdout])
    drafted = written.replace(str(workplace.folder), "")  # whose own name may hold such digits
    for value in ("ward0", "w7", "43.625", "30"):
        assert value not in drafted
    assert "trajectories by who, in the order of visit" in made.stdout
    assert "\naction: dose (called so: --action none if it is none)\nreward: gain" in made.stdout
    assert f"--schema {files[0]} --dataset ward-v0" in made.stdout
    again = workplace.privrl("init", table, "--out", out)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_init_says_which_roles_no_column_has_and_how_to_name_one(workplace):
    table, out = workplace.folder / "ward.csv", workplace.folder / "drafts"
    table.write_text(ROWS.replace("dose", "level").replace("gain", "rate"))
    made = workplace.privrl("init", table, "--out", out, "--unit", "who", "--reward", "rate")
    said = (
        "action: none (no column that changes is called so: if one is, name it with --action"
        " COLUMN)\n"
    )
    assert f"{said}reward: rate\n" in made.stdout
    assert "\nprivrl certificate verify run/certificate.json\n" in made.stdout
    assert "  action: none\n" in (out / "schema.yaml").read_text()


def test_drafts_with_blanks_stop_at_their_lines(workplace):
    table, out = workplace.folder / "ward.csv", workplace.folder
    table.write_text(ROWS)
    workplace.privrl("init", table, "--out", out, "--unit", "who")
    schema, config = out / "schema.yaml", out / "config.yaml"
    lines = schema.read_text().splitlines()
    place = next(i for i, line in enumerate(lines, 1) if line.strip().startswith("values:"))
    line = ("import", table, "--schema", schema, "--dataset", "ward-v0")
    refused = workplace.privrl(*line)
    assert refused.exit_code == 2
    assert (
        f"has blanks, fill in kinds.ward.values (line {place}), spaces.action.n" in refused.stderr
    )
    for verb in (("plan",), ("config", "validate")):
        refused = workplace.privrl(*verb, config)
        assert refused.exit_code == 2
        assert re.search(r"fill in data\.units \(line \d+\), data\.max_length", refused.stderr)
    assert not workplace.datasets.exists()


def test_what_init_refuses_is_one_line(workplace):
    table = workplace.folder / "stays.csv"
    table.write_text(ROWS)
    for options, said in (
        (("--order", "visit"), "name it with --trajectory"),
        (("--unit", "patient"), "has no column patient"),
        (("--dataset", "a b"), "--dataset"),
    ):
        refused = workplace.privrl("init", table, "--out", workplace.folder / "d", *options)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not (workplace.folder / "d").exists()


def test_a_file_with_semicolons_is_drafted_and_imported(workplace):
    table, out = workplace.folder / "ward.csv", workplace.folder / "drafts"
    table.write_text(ROWS.replace(",", ";"))
    init = ("init", table, "--unit", "who", "--out")
    made = workplace.privrl(*init, out)
    assert "fields: separated by semicolons\n" in made.stdout
    schema = (out / "schema.yaml").read_text()
    assert "\nseparator: semicolon\ncolumns:\n" in schema
    (workplace.folder / "schema.yaml").write_text(
        "separator: semicolon\n"
        "columns: {observation: age, action: dose, reward: gain, trajectory: who, order: visit}\n"
        "spaces: {observation: {type: box}, action: {type: discrete, n: 4}}\n"
    )
    line = ("import", table, "--schema", workplace.folder / "schema.yaml", "--dataset", "ward-v0")
    assert workplace.privrl(*line).exit_code == 0
    refused = workplace.privrl(*init, workplace.folder / "other", "--separator", "tab")
    assert refused.exit_code == 2
    assert "separated by tabs, and its header is separated by semicolons" in refused.stderr
    table.write_text(ROWS.replace(",", ";").replace(".", ","))
    refused = workplace.privrl(*init, workplace.folder / "other")
    assert refused.exit_code == 2
    assert "age, gain have numbers with a comma: write decimals with a point" in refused.stderr
    table.write_text(ROWS)
    assert "separat" not in workplace.privrl(*init, workplace.folder / "comma").stdout
    assert "separat" not in (workplace.folder / "comma" / "schema.yaml").read_text()


def test_rows_of_one_each_are_units_and_nobody_is_sent_to_trajectories(workplace):
    table = workplace.folder / "people.csv"
    table.write_text("person,x,dose,gain\np1,0.5,1,1\np2,1.5,0,3\np3,2.5,1,3\np4,0.5,0,1\n")
    made = workplace.privrl("init", table, "--out", workplace.folder / "drafts")
    assert made.exit_code == 0, made.output
    said = made.stdout
    assert "unit: transition\n" in said
    assert "rows: each on its own, and a unit: where a person may have several, name --unit" in said
    assert "--trajectory" not in said
