import re
from pathlib import Path

from distributed_privrl.cli.failures import InterruptedRunError
from distributed_privrl.core import errors

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_every_command_line_of_the_page_parses(understands):
    lines = re.findall(r"^privrl .+$", PAGE, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        assert understands(line), line


def test_every_exit_code_is_on_the_page():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.PrivRLError)
    ]
    codes = {0, *(kind.exit_code for kind in (*kinds, InterruptedRunError))}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
