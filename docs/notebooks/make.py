"""Makes notebooks of their sources, and runs them: ``make notebooks``.

A source is Python with ``# %%`` before each cell, as editors and jupytext have it; the notebooks
are made anew, with their outputs, into ``runs/notebooks/``. Needs nbclient, nbformat and ipykernel.
"""

import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MARK = "# %%"


def sources() -> list[Path]:
    """Return the sources of all notebooks."""
    return sorted(path for path in FOLDER.glob("*.py") if path != Path(__file__))


def cells_of(source: str) -> list[tuple[str, str]]:
    """Return the cells of a source: ``code`` or ``markdown``, and the text."""
    found = []
    for part in source.split(f"\n{MARK}")[0:]:
        head, _, body = part.removeprefix(MARK).partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        lines = body.strip().splitlines()
        if kind == "markdown":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append((kind, "\n".join(lines)))
    return found


def notebook_of(path: Path) -> Any:
    """Return a source as a notebook without outputs."""
    import nbformat

    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    cells = [make[kind](text) for kind, text in cells_of(path.read_text())]
    return nbformat.v4.new_notebook(cells=cells)


def main() -> None:
    """Run every notebook and write it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    out = FOLDER.parents[1] / "runs" / "notebooks"
    out.mkdir(parents=True, exist_ok=True)
    for path in sources():
        start = time.monotonic()
        notebook = notebook_of(path)
        NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
        nbformat.write(notebook, out / f"{path.stem}.ipynb")
        sys.stdout.write(f"{out / path.stem}.ipynb: {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main()
