"""What PrivORL-j releases, of drawn chunks: whole trajectories, and figures about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.metadata import SEAM_KEY, SUPPORT_KEY
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.privorl.step_model import StepDrawer
from distributed_privrl.methods.privorl.stitching import (
    SeamErrors,
    decode_trajectories,
    trajectories_of,
)
from distributed_privrl.stages.context import SyntheticTrajectories

if TYPE_CHECKING:
    from distributed_privrl.methods.privorl.release import ChunkDrawer


def released_trajectories(
    encoder: FragmentEncoder, folder: Path, drawer: ChunkDrawer
) -> SyntheticTrajectories:
    """Return the trajectories in a folder of chunks, in raw units, and figures about them.

    Args:
        encoder: of the fragments.
        folder: of the chunks.
        drawer: that drew them.
    """
    from distributed_privrl.methods.privorl.release import read_chunks

    def decoded() -> Iterator[Trajectories]:
        return (decode_trajectories(encoder, steps) for steps in read_chunks(folder, drawer.count))

    def facts() -> dict[str, Any]:
        errors = SeamErrors.none()
        for steps in read_chunks(folder, drawer.count):
            errors.add(encoder, steps)
        return {SEAM_KEY: errors.facts(), **support_facts(folder, drawer)}

    return SyntheticTrajectories(chunks=decoded, facts=facts)


def support_facts(folder: Path, drawer: ChunkDrawer) -> dict[str, Any]:
    """Return how many cells of the support count, and how many trajectories are not within them.

    Privacy: post-processing of the noisy histogram and of what is released.
    """
    from distributed_privrl.methods.privorl.release import read_chunks

    support = drawer.support if isinstance(drawer, StepDrawer) else None
    if support is None:
        return {}
    astray = sum(
        len(np.unique(trajectories_of(steps)[~support.contains(steps)]))
        for steps in read_chunks(folder, drawer.count)
    )
    cells = {"cells": support.grid.size, "visited": len(support.visited)}
    return {SUPPORT_KEY: {**cells, "trajectories_outside": astray}}
