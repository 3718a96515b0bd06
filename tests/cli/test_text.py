from distributed_privrl.cli.text import show_table, show_values


def test_values_are_aligned(capsys):
    show_values({"epsilon": "1", "unit": "trajectory"})
    assert capsys.readouterr().out == "epsilon  1\nunit     trajectory\n"


def test_tables_are_as_wide_as_their_widest_cell(capsys):
    show_table(("a", "long name"), [("wide cell", "1"), ("b", "")])
    assert capsys.readouterr().out == "a          long name\nwide cell  1\nb\n"
