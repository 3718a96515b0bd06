"""TrajScore: how alike synthetic and real trajectories are, seen through a public autoencoder.

Not a private release: against sensitive trajectories it belongs into ``private/``.

Reference: PrivORL, section VIII-C and appendix H-C, which leave open how trajectories are matched
and what chance gives; both are fixed here (see `trajectory_score`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories
from distributed_privrl.models.layers import mlp

_LARGEST = 10.0  # standardised values beyond are cut, so that no outlier rules a window


@dataclass(frozen=True, kw_only=True)
class TrajectoryScoreConfig:
    """How trajectories are embedded and compared.

    Args:
        window: steps of a window (L); trajectories are cut into windows from their start, what is
            left over is dropped.
        width: of the autoencoder's hidden layers.
        embedding: numbers of an embedding.
        steps: gradient steps.
        batch_size: windows a step.
        learning_rate: of Adam.
        sample: windows compared on each side at most.
        permutations: how often the baseline is drawn.

    Raises:
        ConfigError: a number is not positive.
    """

    window: int = 16
    width: int = 256
    embedding: int = 32
    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3
    sample: int = 512
    permutations: int = 20

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            check_positive(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class TrajectoryScore:
    """The score, and what to compare it with.

    Args:
        score: mean cosine similarity of matched synthetic and real windows.
        chance: the same for other real windows whose columns were permuted (`permuted_columns`):
            a model that knows each step's marginals and nothing of how they belong together.
        chance_high: the largest of those permutations.
        ceiling: the same between two disjoint samples of the real windows.
        windows: windows on each side.
    """

    score: float
    chance: float
    chance_high: float
    ceiling: float
    windows: int


def trajectory_score(
    encoder: "WindowEncoder",
    real: NDArray[np.float64],
    synthetic: NDArray[np.float64],
    *,
    generator: np.random.Generator,
    config: TrajectoryScoreConfig | None = None,
) -> TrajectoryScore:
    """Return the TrajScore of synthetic windows.

    n windows of each side are drawn (n = half the real windows, all the synthetic ones, or
    ``config.sample``, whichever is least), embedded, and matched one to one so that the sum of
    cosine similarities is largest (Hungarian algorithm); the score is its mean, in [-1, 1].
    Embeddings are centred on the mean of the public windows'.

    Args:
        encoder: trained on public windows.
        real: (M, L, D) windows.
        synthetic: (N, L, D) windows.
        generator: source of samples and permutations.
        config: how; only ``sample`` and ``permutations`` matter here.

    Raises:
        ConfigError: fewer than four real windows or two synthetic ones.
    """
    config = config or TrajectoryScoreConfig()
    count = min(config.sample, len(synthetic), len(real) // 2)
    if count < 2:
        raise ConfigError(
            f"TrajScore needs four real windows and two synthetic ones at least, got {len(real)}"
            f" and {len(synthetic)}: take a shorter window"
        )
    drawn = generator.permutation(len(real))
    first, second = real[drawn[:count]], real[drawn[count : 2 * count]]
    chosen = synthetic[generator.permutation(len(synthetic))[:count]]
    target = encoder.embed(first)
    chance = [
        matched_similarity(target, encoder.embed(permuted_columns(second, generator)))
        for _ in range(config.permutations)
    ]
    return TrajectoryScore(
        score=matched_similarity(target, encoder.embed(chosen)),
        chance=float(np.mean(chance)),
        chance_high=max(chance),
        ceiling=matched_similarity(target, encoder.embed(second)),
        windows=count,
    )


def matched_similarity(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the mean cosine similarity of the best one-to-one matching.

    Args:
        one: (n, E) embeddings.
        other: (n, E) embeddings; an embedding of length 0 is similar to none.

    Example:
        >>> one = np.array([[1.0, 0.0], [0.0, 2.0]])
        >>> matched_similarity(one, np.array([[0.0, 1.0], [1.0, 1.0]])).__round__(4)
        0.8536
    """
    unit = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
            for rows in (one, other)]  # fmt: skip
    similarity = unit[0] @ unit[1].T
    return float(similarity[linear_sum_assignment(similarity, maximize=True)].mean())


def permuted_columns(
    windows: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return windows ``(N, L, D)`` whose every number comes from another window.

    Each column of each step is permuted over the windows on its own: its marginal stays, whatever
    ties columns and steps together is lost.
    """
    flat = windows.reshape(len(windows), -1)
    return generator.permuted(flat, axis=0).reshape(windows.shape)


def windows_of(trajectories: Trajectories, layout: RowLayout, length: int) -> NDArray[np.float64]:
    """Return windows ``(N, L, D)`` of observation, action and reward.

    Windows follow each other from each trajectory's start; a shorter rest is dropped, and so is a
    window with a value that is not finite or outside its space.

    Args:
        trajectories: of the layout's spaces.
        layout: which column holds what.
        length: L.
    """
    rows, valid = layout.to_rows(trajectories.transitions(TRAJECTORY))
    width = layout.blocks["reward"].stop
    counts = trajectories.lengths // length
    starts = np.repeat(trajectories.offsets[:-1], counts)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = (starts + within * length)[:, None] + np.arange(length)
    proper = positions[valid[positions].all(axis=1)]
    windows: NDArray[np.float64] = rows[proper][:, :, :width]
    return windows


class WindowEncoder:
    """The encoder half of an autoencoder over windows, trained on public ones.

    Two MLPs with two hidden layers of ReLU; the loss is the mean squared error of the standardised
    window.

    Args:
        public: (N, L, D) windows of public data: scales and network come from them alone.
        config: sizes and training.
        streams: public random streams.

    Raises:
        ConfigError: fewer than two windows.
    """

    def __init__(
        self, public: NDArray[np.float64], config: TrajectoryScoreConfig, streams: Streams
    ) -> None:
        if public.ndim != 3 or len(public) < 2:
            raise ConfigError(
                f"the public data hold {len(public)} windows of {config.window} steps, two are"
                " needed: name a public dataset of longer trajectories, or a shorter window"
            )
        wide = public.reshape(-1, public.shape[2])
        self._offset = wide.mean(axis=0)
        self._scale = np.where(np.ptp(wide, axis=0) > 0, wide.std(axis=0), 1.0)
        rows = self._rows(public)
        generator = torch.Generator().manual_seed(streams.integer("model"))
        hidden = (config.width, config.width)
        self._encoder = mlp((rows.shape[1], *hidden, config.embedding), generator)
        decoder = mlp((config.embedding, *hidden, rows.shape[1]), generator)
        parameters = [*self._encoder.parameters(), *decoder.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
        shuffle = streams.numpy("batches")
        for _ in range(config.steps):
            batch = rows[torch.from_numpy(shuffle.integers(len(rows), size=config.batch_size))]
            optimiser.zero_grad(set_to_none=True)
            loss = (decoder(self._encoder(batch)) - batch).square().mean()
            torch.autograd.backward(loss)
            optimiser.step()
        self.training_error = float(loss.detach())
        self._centre = np.zeros(config.embedding)
        self._centre = self.embed(public).mean(axis=0)

    def _rows(self, windows: NDArray[np.float64]) -> Tensor:
        scaled = np.clip((windows - self._offset) / self._scale, -_LARGEST, _LARGEST)
        return torch.from_numpy(scaled.reshape(len(windows), -1).astype(np.float32))

    def embed(self, windows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the embeddings ``(N, E)`` of windows ``(N, L, D)``, centred on the public mean."""
        with torch.inference_mode():
            embeddings: NDArray[np.float64] = self._encoder(self._rows(windows)).double().numpy()
        return embeddings - self._centre
