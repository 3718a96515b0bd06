"""Named streams of public randomness.

Everything that is not private (model initialisation, shuffling of public data, sampling from a
trained model) draws from a stream named after its consumer, so that adding a consumer never changes
another's draws. Private randomness (inclusion coins, noise) never comes from here: see
``distributed_privrl.privacy.noise`` and ``.sampling``.
"""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Streams:
    """Derives independent streams from one public seed.

    Args:
        seed: the public seed of a run.

    Example:
        >>> streams = Streams(seed=0)
        >>> streams.numpy("model") is not streams.numpy("model")
        True
        >>> bool(streams.numpy("model").random() == streams.numpy("model").random())
        True
        >>> bool(streams.numpy("model").random() == streams.numpy("shuffle").random())
        False
    """

    seed: int

    def integer(self, name: str) -> int:
        """Return the 63-bit seed of the stream called ``name`` (for ``torch.Generator``)."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def numpy(self, name: str) -> np.random.Generator:
        """Return a fresh numpy generator for the stream called ``name``."""
        return np.random.Generator(np.random.Philox(key=self.integer(name)))

    def child(self, name: str) -> "Streams":
        """Return streams of their own for a part of the program called ``name``."""
        return Streams(self.integer(name))
