"""The pages of the documentation, and what is quoted in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CONFIGURATIONS = sorted((ROOT / "tune_configs").glob("*.yaml"))
SWEEPS = sorted((ROOT / "tune_configs" / "sweeps").glob("*.yaml"))


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page.

    Args:
        page: where it stands.
        language: that it names, or nothing.
        name: of a file, in backticks on the line before.
        text: what it quotes.
        remark: of the comment before it: ``not run: REASON``, or ``exits with CODE: REASON``.
    """

    page: Path
    language: str
    name: str
    text: str
    remark: str = ""

    @property
    def is_code(self) -> bool:
        """Whether it is typed: Python, or lines of a shell."""
        return self.language in ("python", "sh") or bool(
            not self.language and re.match(r"privrl ", self.text)
        )

    @property
    def left_out(self) -> str:
        """Why it is not run; empty where it is."""
        return self.remark.partition("not run: ")[2]

    @property
    def exit_code(self) -> int:
        """What its command lines exit with."""
        found = re.match(r"exits with (\d+): .", self.remark)
        return int(found[1]) if found else 0


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


_FENCE = re.compile(
    r"(?:^ *<!-- (?P<remark>[^\n]*) -->\n)?(?:^`(?P<name>[^`\n]+)`\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def all_fences(page: Path) -> list[Fence]:
    """Return the blocks of a page, in order."""
    return [
        Fence(page, match["language"], match["name"] or "", text, match["remark"] or "")
        for match in _FENCE.finditer(page.read_text())
        for text in [re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)]
    ]


def fences(page: Path, language: str) -> Iterator[Fence]:
    yield from (fence for fence in all_fences(page) if fence.language == language)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def section(page: Path, title: str) -> str:
    """Return what stands under a heading of a page, down to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", prose(page), re.M | re.DOTALL)
    assert found, f"{named(page)}: no heading {title!r}"
    return found[1]


def command_lines(page: Path) -> list[str]:
    """Return what is typed: whole lines of code blocks and tune_configs' comments."""
    return re.findall(r"^(?:#   )?(privrl .+?)(?:  +#.*)?$", page.read_text(), re.MULTILINE)


def table_after(page: str, start: str) -> list[list[str]]:
    """Return the cells of the lines of the first table of a page after ``start``."""
    text = page[page.index(start) :]
    table = text[text.index("| | ") :].split("\n\n")[0]
    return [[one.strip() for one in line.strip("|").split("|")] for line in table.split("\n")]


def said(shown: str, *values: float) -> bool:
    """Say whether a text has these numbers and no others, each rounded to the digits it shows."""
    scale = 100 if "%" in shown else 1
    texts = re.findall(r"-?\d*\.?\d+", shown)
    digits = [len(text.partition(".")[2]) for text in texts]
    return len(texts) == len(values) and all(
        abs(float(text) - scale * value) <= 0.501 * 10**-places
        for text, places, value in zip(texts, digits, values, strict=True)
    )
