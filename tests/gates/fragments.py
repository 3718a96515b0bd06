"""Many byte strings that are looked for at once."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_HEAD = 8


class Fragments:
    """Byte strings, each with what it is, which are found by their first 8 bytes.

    Args:
        fragments: what each is, and its bytes.
    """

    def __init__(self, fragments: Iterable[tuple[str, bytes]]) -> None:
        self._short: list[tuple[str, bytes]] = []
        self._long: dict[bytes, list[tuple[str, bytes]]] = defaultdict(list)
        for what, fragment in dict.fromkeys(fragments):
            if len(fragment) < _HEAD:
                self._short.append((what, fragment))
            else:
                self._long[fragment[:_HEAD]].append((what, fragment))
        self._heads = np.sort(np.frombuffer(b"".join(self._long), np.uint64))

    def found_in(self, content: bytes) -> str | None:
        """Return what one of them is that ``content`` holds; None: it holds none."""
        likely = [*self._short]
        for head in words_in(content, self._heads):
            likely += self._long[head.tobytes()]
        return next((what for what, fragment in likely if fragment in content), None)


def words_in(content: bytes, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return those of ``words``, which are sorted, that lie in ``content``, aligned or not."""
    found = [np.empty(0, np.uint64)]
    for offset in range(min(8, len(content)) if len(words) else 0):
        held = np.frombuffer(content, np.uint64, (len(content) - offset) // 8, offset)
        places = np.searchsorted(words, held).clip(max=len(words) - 1)
        found.append(held[words[places] == held])
    return np.unique(np.concatenate(found))
