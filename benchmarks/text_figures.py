"""Synthetic texts beside real ones: how near, how long, how built, and what was copied.

`python -m benchmarks.text_figures --real held-out.jsonl --texts tuned=a.jsonl aug_pe=b.jsonl` makes
a row of the table of each file, and figure 3 of the paper: distributions of the Jaccard similarity
with the nearest real text, and of the words of a turn. Files are as a run writes them, a JSON
object with a ``text`` a line.

Privacy:
    Exact figures of real texts: for whoever may read them.

Reference: DP-RFT, sections 4.1 and 6.1.
"""

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Result
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus import CorpusRef, documents
from distributed_privrl.text.compared import compare
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.language import Language
from distributed_privrl.text.minilm import MiniLmEncoder
from distributed_privrl.text.next_tokens import NextTokenConfig, next_token_accuracy
from distributed_privrl.text.scoring import Encoder
from distributed_privrl.text.text_measures import copies, nearest_jaccard, turn_words

NAME, REAL = "text_figures", "real"
ENCODERS: Mapping[str, Encoder] = {
    "hashed": HashedEncoder(dimension=1024),
    "minilm": MiniLmEncoder(),
}
_BINS = 24
_NOTES = (
    "similarity: mean cosine over all pairs; nearest, nearest jaccard: means over texts of the"
    " largest cosine, and of the largest Jaccard similarity of words; frechet: distance of the"
    " vectors; words, turns, words a turn: mean way between the quantiles of both sides'"
    " distributions; duplicates: share of texts that another one equals; foreign words: share of"
    " words that no real text has; copies: share with eight words in a row of a real one; next"
    " token: share of tokens of real texts that the model of --language guesses once it has learned"
    " from the row's texts.",
    "The row 'real' is one half of the real texts beside the other, by turns.",
)


def read(path: Path) -> list[str]:
    """Return the texts of a file.

    Raises:
        ConfigError: there are fewer than four: halves of two rows are compared.
    """
    found = [one.text for one in documents(CorpusRef(path=str(path)))]
    if len(found) < 4:
        raise ConfigError(f"{path} has {len(found)} texts, at least 4 are needed")
    return found


def row_of(
    name: str, texts: Sequence[str], real: Sequence[str], encoder: Encoder, language: Path | None
) -> dict[str, Any]:
    """Return how texts compare with real ones; arguments as for `compared`."""
    found = compare(texts, real, encoder)
    accuracy = None if language is None else _accuracy(language, texts, real)
    return {
        "texts": name,
        "number": len(texts),
        "similarity": found.similarity,
        "nearest": found.nearest,
        "nearest jaccard": found.nearest_jaccard,
        "frechet": found.frechet,
        "words": found.words,
        "turns": found.turns,
        "words a turn": found.turn_words,
        "duplicates": found.duplicates,
        "foreign words": found.foreign_words,
        "copies": copies(texts, real).texts,
        "next token": accuracy,
    }


def _accuracy(folder: Path, texts: Sequence[str], real: Sequence[str]) -> float:
    """Return the accuracy of a folder's model on real texts, once it has learned from others."""
    language, streams = Language.load(folder), Streams(harness.SEED).child("judge")
    longest = min(NextTokenConfig.most_tokens, int(language.tokenizer.model_max_length))
    config = NextTokenConfig(most_tokens=longest)
    return next_token_accuracy(language, texts, real, config=config, streams=streams)


def compared(
    sets: Mapping[str, Sequence[str]],
    real: Sequence[str],
    encoder: Encoder,
    language: Path | None = None,
) -> Result:
    """Return the table and the figure.

    Args:
        sets: synthetic texts, by name.
        real: texts.
        encoder: of both; best one that no reward used.
        language: folder of a small causal model that learns from each set; None: none does.
    """
    rows = [row_of(REAL, real[::2], real[1::2], encoder, language)]
    rows += [row_of(name, texts, real, encoder, language) for name, texts in sets.items()]
    return Result(cells=rows, ratios={}, notes=_NOTES, figures={"png": figure_of(sets, real)})


def figure_of(sets: Mapping[str, Sequence[str]], real: Sequence[str]) -> bytes:
    """Return a PNG of both distributions of each set, the real texts' among them."""
    near = {name: nearest_jaccard(texts, real) for name, texts in sets.items()}
    near = {REAL: nearest_jaccard(real[::2], real[1::2]), **near}
    words = {name: turn_words(texts) for name, texts in {REAL: real, **sets}.items()}
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, near, np.linspace(0, 1, _BINS + 1))
    left.set_xlabel("Jaccard similarity with the nearest real text")
    left.set_ylabel("share of texts")
    longest = max(float(one.max(initial=1)) for one in words.values())
    _curves(right, words, np.geomspace(1, longest + 1, _BINS + 1))
    right.set_xscale("log")
    right.set_xlabel("words of a turn")
    right.set_ylabel("share of turns")
    left.legend(fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _curves(
    axes: Axes, values: Mapping[str, NDArray[np.float64]], edges: NDArray[np.float64]
) -> None:
    for name, some in values.items():
        counts, _ = np.histogram(some, edges)
        drawn = axes.stairs(counts / max(1, len(some)), edges, label=name)
        if name == REAL:
            drawn.set(edgecolor="black", linestyle="--")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare files and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--texts", nargs="+", required=True, metavar="NAME=FILE")
    parser.add_argument("--encoder", choices=tuple(ENCODERS), default="hashed")
    parser.add_argument("--language", type=Path, help="folder of a small causal model")
    parser.add_argument("--out", type=Path, help=f"folder for {NAME}.md, .json and .png")
    options = parser.parse_args(arguments)
    sets = {}
    for one in options.texts:
        name, _, file = one.partition("=")
        if not file or name == REAL or name in sets:
            parser.error(f"--texts {one}: give NAME=FILE, each name once, none of them {REAL}")
        sets[name] = read(Path(file))
    encoder = ENCODERS[options.encoder]
    result = compared(sets, read(options.real), encoder, options.language)
    about = {"encoder": options.encoder, **harness.machine()}
    harness.publish(NAME, result, about, folder=options.out)


if __name__ == "__main__":
    main()
