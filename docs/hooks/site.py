"""What mkdocs adds to the pages of docs/: top-level pages, methods' README files, and the API.

``mkdocs.yml`` names this file under ``hooks``. Pages are read on GitHub, too, so that links between
them are those of the repository; here they become links of the site.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
TOP = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
} | {
    path.relative_to(ROOT).as_posix(): f"functions/{path.parent.name}.md"
    for path in sorted(ROOT.glob("distributed_privrl/methods/*/README.md"))
}
"""Pages outside docs/, and what the site calls them."""
PICTURES = ROOT / "runs" / "screenshots"
"""Of the reports, made by ``python -m tests.docs.screenshots``; a site without them says so."""
_SCREENSHOT = re.compile(r"^<!-- screenshot (?P<name>[\w-]+): (?P<text>.+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_SECTION = re.compile(r"^(Args|Returns|Raises|Privacy|Example|Yields):(?: (.*))?$")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file of docs/ is."""
    for name, page in TOP.items():
        text = linked((ROOT / name).read_text(), from_top=True)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "api.md", content=api()))
    for path in sorted(PICTURES.glob("*.png")):
        picture = File.generated(config, f"screenshots/{path.name}", abs_src_path=str(path))
        files.append(picture)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links that leave docs/ to the pages that stand for their files; show screenshots."""
    up = "../" * page.file.src_uri.count("/")
    return linked(photographed(markdown, up=up), up=up)


def photographed(text: str, *, up: str = "") -> str:
    """Return a page with the screenshots that it asks for, or a note where there are none.

    A line ``<!-- screenshot NAME: what it shows -->`` asks for ``PICTURES/NAME.png``. What reads
    the page on GitHub shows nothing there.

    Args:
        text: of the page, in Markdown.
        up: from the page to the root of the site.
    """

    def shown(match: re.Match[str]) -> str:
        if (PICTURES / f"{match['name']}.png").exists():
            return f"![{match['text']}]({up}screenshots/{match['name']}.png)"
        sys.stderr.write(f"no screenshot {match['name']}: left out of the site\n")
        return f"*{match['text']}: this site was built without a browser that makes the picture.*"

    return _SCREENSHOT.sub(shown, text)


def linked(text: str, *, from_top: bool = False, up: str = "") -> str:
    """Return a page whose links lead to pages of the site, or are none.

    Args:
        text: of the page, in Markdown.
        from_top: it stands beside docs/, not in it.
        up: from the page to the root of the site.
    """

    def moved(match: re.Match[str]) -> str:
        path, mark, anchor = match["target"].partition("#")
        name = path.removeprefix("../" * path.count("../"))
        if from_top and path.startswith("docs/"):
            return f"[{match['text']}]({path.removeprefix('docs/')}{mark}{anchor})"
        leaves = path.startswith("../" * (up.count("../") + 1)) or (from_top and path)
        if ":" in path or not leaves:
            return match[0]
        if name in TOP:
            return f"[{match['text']}]({up}{TOP[name]}{mark}{anchor})"
        return match["text"]

    return _LINK.sub(moved, text)


def api() -> str:
    """Return the reference of the package's public names, made of their docstrings."""
    package = importlib.import_module("distributed_privrl")
    parts = ["# Python", "`import distributed_privrl as pr`"]
    for name in package.__all__:
        value = getattr(package, name)
        parts += [f"## pr.{name}", *_described(f"pr.{name}", value)]
        if inspect.isclass(value) and not issubclass(value, Exception):
            for inner, member in inspect.getmembers(value, _documented):
                if not inner.startswith("_") and member.__qualname__.startswith(value.__name__):
                    parts += [f"### {name}.{inner}", *_described(inner, member)]
    return "\n\n".join(parts) + "\n"


def _documented(member: Any) -> bool:
    return inspect.isroutine(member) and bool(member.__doc__)


def _described(name: str, value: Any) -> list[str]:
    """Return the signature and the docstring of a name, as Markdown."""
    shown = []
    if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception)):
        parameters = [_parameter(one) for one in inspect.signature(value).parameters.values()]
        shown.append(f"```python\n{name}({', '.join(filter(None, parameters))})\n```")
    return shown + _markdown(inspect.getdoc(value) or "")


def _parameter(one: inspect.Parameter) -> str:
    if one.name == "self":
        return ""
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    plain = isinstance(one.default, str | int | float | bool | None)
    default = "" if one.default is one.empty else f"={one.default!r}" if plain else "=..."
    return f"{stars}{one.name}{default}"


def _markdown(docstring: str) -> list[str]:
    """Return a docstring of Google's style as Markdown: sections are bold, and lists of theirs."""
    lines: list[str] = []
    inside = ""
    for line in docstring.replace("``", "`").splitlines():
        found = _SECTION.match(line)
        if found:
            inside = found[1]
            lines += ["", f"**{inside}**", "", found[2] or ""]
        elif inside == "Example" and line.strip():
            lines.append(f"    {line.strip()}")
        elif inside in ("Args", "Raises") and re.match(r"    \S", line):
            key, colon, rest = line.strip().partition(": ")
            lines.append(f"* `{key}`: {rest}" if colon else f"* {key}")
        else:
            lines.append(f"  {line.strip()}" if inside in ("Args", "Raises") else line.strip())
    return ["\n".join(lines).strip()]
