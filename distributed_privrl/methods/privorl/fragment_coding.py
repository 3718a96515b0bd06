"""What every synthesizer of fragments knows of their rows, whatever its network is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from distributed_privrl.data.fragments import FragmentEncoder


@dataclass(frozen=True, kw_only=True)
class CodedFragments:
    """Fragments of H steps as rows; see `update.Synthesizer`.

    Args:
        encoder: JSON of the `FragmentEncoder`.
    """

    encoder: str

    @cached_property
    def fragments(self) -> FragmentEncoder:
        """Cuts and encodes trajectories."""
        return FragmentEncoder.from_json(self.encoder)

    @property
    def row_width(self) -> int:
        """Numbers in a fragment's row (W)."""
        return self.fragments.width

    @property
    def public_parts(self) -> tuple[str, ...]:
        """None: one network makes the whole fragment."""
        return ()
