def test_a_finished_run_gives_more_rows_for_nothing(finished):
    place = finished.workplace
    ledger = place.privrl("ledger", "show").stdout
    made = place.privrl("sample", finished.out, "--size", 25, "--dataset", "clinic/extra-v0")
    assert made.exit_code == 0, made.output
    assert "clinic/extra-v0 (25 rows)" in made.stdout
    assert "which the run has paid" in made.stdout
    assert place.privrl("ledger", "show").stdout == ledger
    path = finished.out / "samples" / "clinic_extra-v0" / "certificate.json"
    verify = ("certificate", "verify", path, "--ledger", place.ledger)
    checked = place.privrl(*verify)
    assert checked.exit_code == 0, checked.output
    out = place.folder / "extra.csv"
    place.privrl("export", "clinic/extra-v0", "--format", "csv", "--out", out)
    assert len(out.read_text().splitlines()) == 26


def test_what_is_no_finished_run_is_refused(workplace):
    refused = workplace.privrl("sample", workplace.folder, "--size", 5)
    assert refused.exit_code == 2
    assert "holds no finished run" in refused.stderr
    assert workplace.privrl("sample", workplace.folder, "--size", 0).exit_code == 2
