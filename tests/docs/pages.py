"""The pages of the documentation, and what is quoted in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGURATIONS = sorted((ROOT / "tune_configs").glob("*.yaml"))


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page; its name is what stands in backticks on the line before."""

    page: Path
    language: str
    name: str
    text: str


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(page: Path, language: str) -> Iterator[Fence]:
    pattern = r"(?:^`([^`\n]+)`\n)?^```(\w*)\n(.*?)^```$"
    for match in re.finditer(pattern, page.read_text(), re.MULTILINE | re.DOTALL):
        if match[2] == language:
            yield Fence(page, match[2], match[1] or "", match[3])


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[str]:
    """Return what is typed: whole lines of code blocks and tune_configs' comments."""
    return re.findall(r"^(?:#   )?(privrl .+?)(?:  +#.*)?$", page.read_text(), re.MULTILINE)
