"""The site is built without a dead link, from pages that tell of every public name."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import yaml

import distributed_privrl as pr
from tests.docs import screenshots
from tests.docs.pages import ROOT, fences


def _hooks() -> Any:
    path = ROOT / "docs" / "hooks" / "site.py"
    spec = importlib.util.spec_from_file_location("site_hooks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = _hooks()


def built(configuration: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *f"build --strict -f {configuration} -d {out}".split()],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_site_is_built_without_a_dead_link(tmp_path: Path) -> None:
    done = built(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    api = (tmp_path / "site" / "api" / "index.html").read_text()
    assert all(f"pr.{name}" in api for name in pr.__all__)
    assert not (tmp_path / "site" / "hooks").exists()


def test_a_page_shows_screenshots_or_says_that_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "reports.md").read_text()
    monkeypatch.setattr(HOOKS, "PICTURES", tmp_path)
    without = HOOKS.photographed(page)
    assert without.count("this site was built without a browser") == len(screenshots.REPORTS)
    assert capsys.readouterr().err.count("left out of the site") == len(screenshots.REPORTS)
    for name in screenshots.REPORTS:
        (tmp_path / f"{name}.png").touch()
    shown = HOOKS.photographed(page, up="../")
    for name in screenshots.REPORTS:
        assert f"](../screenshots/{name}.png)" in shown
    assert not capsys.readouterr().err


def test_without_a_browser_old_screenshots_go_and_the_reader_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screenshots, "PICTURES", tmp_path / "pictures")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "report.png").touch()
    screenshots.main()
    assert "make chromium" in capsys.readouterr().err
    assert not (tmp_path / "pictures").exists()
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho no sandbox >&2\nexit 1\n")
    broken.chmod(0o755)
    screenshots.main()
    error = capsys.readouterr().err
    assert error.startswith("NO SCREENSHOTS")
    assert "no sandbox" in error


def test_screenshots_are_of_the_tutorial_s_run() -> None:
    blocks = list(screenshots.needed(screenshots.PAGE))
    assert {"schema.yaml", "bounds.yaml", "health.yaml"} == {one.name for one in blocks} - {""}
    lines = [line for one in blocks if one.language == "sh" for line in one.text.splitlines()]
    assert [line.split()[1] for line in lines] == ["import", "ledger", "run"]
    (out,) = re.findall(r"--out (\S+)", lines[-1])
    assert all(path.startswith(f"{out}/") for path in screenshots.REPORTS.values())


@pytest.mark.skipif(not screenshots.browser(), reason="no Chromium: `make chromium` installs it")
def test_a_browser_takes_a_picture_of_a_page(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text("<body style='margin: 0; background: #123456'></body>")
    screenshots.photograph(str(screenshots.browser()), page, picture)
    pixels = plt.imread(picture)
    assert pixels.shape[:2] == screenshots.SIZE[::-1]
    assert ((pixels[..., :3] * 255).round() == [0x12, 0x34, 0x56]).all()


@pytest.mark.parametrize("link", ["index.md#title", "missing.md", "index.md#nowhere"])
def test_a_dead_link_or_anchor_ends_the_build(link: str, tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    values = yaml.safe_load(text[: text.index("exclude_docs")]) | {
        "docs_dir": str(tmp_path / "docs"),
        "plugins": [],
        "theme": "mkdocs",
        "validation": yaml.safe_load(text)["validation"],
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n[a link]({link})\n")
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(values))
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert (done.returncode == 0) == link.endswith("#title"), done.stderr


def test_the_navigation_is_complete() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *HOOKS.TOP.values(), "api.md"])


def test_every_method_s_page_leads_to_what_its_paper_became() -> None:
    (methods,) = (
        part["Methods"]
        for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        if "Methods" in part
    )
    linked = r"\]\(\.\./(distributed_privrl/methods/\w+/README\.md)\)"
    found = {
        name: re.findall(linked, (ROOT / "docs" / name).read_text())
        for (name,) in (one.values() for one in methods)
    }
    assert all(found.values()), found
    pages = (ROOT / "docs").glob("*.md")
    named = {name for page in pages for name in re.findall(linked, page.read_text())}
    assert named == {name for name in HOOKS.TOP if "/" in name}


def test_links_of_the_repository_become_links_of_the_site() -> None:
    top = "[a](docs/data.md#the-card) [b](LICENSE) [c](https://example.org) [d](#here)"
    assert HOOKS.linked(top, from_top=True) == (
        "[a](data.md#the-card) b [c](https://example.org) [d](#here)"
    )
    inner = "[a](../README.md#install) [b](data.md) [c](../cluster/README.md)"
    assert HOOKS.linked(inner) == "[a](readme.md#install) [b](data.md) c"
    deeper = "[a](../../README.md) [b](../data.md)"
    assert HOOKS.linked(deeper, up="../") == "[a](../readme.md) [b](../data.md)"


def test_the_reference_has_arguments_and_promises() -> None:
    text = HOOKS.api()
    run = text.split("## pr.run\n")[1].split("\n## ")[0]
    assert "* `config`: " in run
    assert "**Raises**" in run
    assert "**Privacy**" in text.split("## pr.load\n")[1].split("\n## ")[0]
    assert re.search(r"```python\npr\.run\(config, .*out", run)


def test_the_table_of_epsilons_is_computed() -> None:
    page = (ROOT / "docs" / "howto" / "choose-epsilon.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.,]+) \| ([\d.]+) % \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for epsilon, factor, sure in rows:
        value = math.exp(float(epsilon))
        digits = 1 if value < 10 else 0
        assert factor == f"{value:,.{digits}f}"
        place = len(sure.partition(".")[2])
        least = 100 * value / (1 + value)
        assert least <= float(sure) < least + 1.01 * 10**-place


@pytest.mark.parametrize(("name", "least"), [("tutorial", 6), ("clinic", 4)])
def test_a_transcript_has_an_output_for_what_it_shows(name: str, least: int) -> None:
    page = ROOT / "docs" / f"{name}.md"
    outputs = list(fences(page, "output"))
    assert len(outputs) >= least
    assert all(fence.text.strip() for fence in outputs), "run python -m tests.docs.transcript"
