"""The public game: a generator against a student that knows rows by noisy votes alone.

Everything here is post-processing of what was released, and of public seeds and rows. The same
answers make the same game again, to the last bit on one machine.

Reference: Jordon, Yoon and van der Schaar 2019, algorithm 1.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.methods.pate_gan.config import AdversaryConfig, VotingConfig
from distributed_privrl.methods.pate_gan.networks import Discriminators, Generator
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.updates.parameters import FlatParameters

_SAMPLES, _LABELS, _LEARNED = "memory.samples", "memory.labels", "learned"


class Trained:
    """A network and the optimiser of all of its parameters.

    Args:
        network: that learns.
        config: step size and decays.
    """

    def __init__(self, network: nn.Module, config: OptimiserConfig) -> None:
        self.network = network
        self.parameters = FlatParameters(network)
        self.optimiser = ServerOptimiser(self.parameters.vector, config, total_steps=1)

    def descend(self, loss: Tensor) -> None:
        """Take a step down ``loss``, which no other network's parameters get a gradient from."""
        gradients = torch.autograd.grad(loss, list(self.network.parameters()))
        self.optimiser.step(torch.cat([one.reshape(-1) for one in gradients]))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return parameters and moments under a name, with the steps that were taken."""
        kept = {f"{name}.{key}": value.clone() for key, value in self.optimiser.tensors().items()}
        return {**kept, f"{name}.steps": torch.tensor(self.optimiser.steps)}

    def restore(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` returned."""
        of_name = {
            key.removeprefix(f"{name}."): value
            for key, value in tensors.items()
            if key.startswith(f"{name}.")
        }
        self.optimiser.restore(of_name, steps=int(of_name["steps"]))


class Pair:
    """A generator, and the student that it has to convince.

    Args:
        model: sizes.
        optimiser: of both.
        encoder: of rows.
        streams: of the initial parameters.
    """

    def __init__(
        self,
        model: AdversaryConfig,
        optimiser: OptimiserConfig,
        encoder: TransitionEncoder,
        streams: Streams,
    ) -> None:
        self._encoder = encoder
        self.generator = Trained(
            Generator(
                model.latent,
                (model.generator_width,) * model.generator_layers,
                encoder.width,
                torch.Generator().manual_seed(streams.integer("generator")),
            ),
            optimiser,
        )
        self.student = Trained(
            Discriminators(
                encoder.width,
                hidden_of(model),
                1,
                torch.Generator().manual_seed(streams.integer("student")),
            ),
            optimiser,
        )

    def rows(self, normals: Tensor) -> Tensor:
        """Return generated rows ``(B, D)`` as a receiver of the release would encode them.

        Categories are one-hot and numbers within their bounds, so that no discriminator tells them
        by their form. Gradients pass as if nothing had been rounded.
        """
        raw: Tensor = self.generator.network(normals)
        decoded = self._encoder.decode(raw.detach().numpy())
        proper = torch.from_numpy(self._encoder.encode(decoded).rows)
        return proper + (raw - raw.detach())

    def teach_student(self, rows: Tensor, labels: Tensor) -> None:
        """Have the student learn labels ``(B,)`` of rows ``(B, D)``; 1: real."""
        logits = self.student.network(rows.detach()[None])[0]
        self.student.descend(functional.binary_cross_entropy_with_logits(logits, labels))

    def teach_shares(self, rows: Tensor, shares: Tensor) -> None:
        """Have the student learn noisy shares of votes ``(B,)``, which may lie beyond 0 and 1.

        The squared error is least at their mean, whatever noise of mean zero they have.
        """
        logits = self.student.network(rows.detach()[None])[0]
        self.student.descend((torch.sigmoid(logits) - shares).square().mean())

    def teach_generator(self, normals: Tensor) -> None:
        """Have the generator make rows that the student takes for real; no teacher is asked."""
        logits = self.student.network(self.rows(normals)[None])[0]
        self.generator.descend(functional.softplus(-logits).mean())

    def tensors(self) -> dict[str, Tensor]:
        """Return both networks and their moments."""
        return self.generator.tensors("generator") | self.student.tensors("student")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` returned."""
        self.generator.restore("generator", tensors)
        self.student.restore("student", tensors)


def hidden_of(model: AdversaryConfig) -> tuple[int, ...]:
    """Return the widths of a discriminator's hidden layers."""
    return (model.discriminator_width,) * model.discriminator_layers


@dataclass(frozen=True, kw_only=True, eq=False)
class GameSpec:
    """What a game is built from: public facts.

    Args:
        model: sizes, and how many teachers there are.
        training: what is learned between votes.
        encoder: JSON of the `TransitionEncoder`.
        seed: the run's public seed.
        start: what public pre-training ended with (`Pair.tensors`); None: there was none.
    """

    model: AdversaryConfig
    training: VotingConfig
    encoder: str
    seed: int
    start: Mapping[str, Tensor] | None = None

    @property
    def streams(self) -> Streams:
        """Public randomness."""
        return Streams(self.seed).child("pate_gan")

    @property
    def student(self) -> Tensor | None:
        """Parameters of the pre-trained student; None: there is none."""
        return None if self.start is None else self.start["student.parameters"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """Generated rows of a step.

    Args:
        fakes: that teachers learn from beside their own rows, ``(S, B, D)`` float32.
        samples: that teachers vote on, ``(K, D)`` float32.
    """

    fakes: NDArray[np.float32]
    samples: NDArray[np.float32]


class Game:
    """Generator and student, step by step.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: GameSpec) -> None:
        self._spec = spec
        encoder = TransitionEncoder.from_json(spec.encoder)
        self.pair = Pair(spec.model, spec.training.optimiser, encoder, spec.streams)
        if spec.start is not None:
            self.pair.restore(spec.start)
        self._memory: deque[tuple[Tensor, Tensor]] = deque(maxlen=spec.training.memory)
        self._lesson: tuple[int, Lesson] | None = None
        self.learned = 0
        """Steps whose answers were learned."""

    def lesson(self) -> Lesson:
        """Return the generated rows of the step that follows those that were learned."""
        if self._lesson is None or self._lesson[0] != self.learned:
            self._lesson = self.learned, self._make_lesson()
        return self._lesson[1]

    def _make_lesson(self) -> Lesson:
        training, random = self._spec.training, self._random("lesson")
        taught = training.teacher_steps * training.teacher_batch
        with torch.no_grad():
            rows = self.pair.rows(self._normals(random, taught + training.votes_per_step)).numpy()
        fakes = rows[:taught].reshape(training.teacher_steps, training.teacher_batch, -1)
        return Lesson(fakes=fakes, samples=rows[taught:])

    def learn(self, answer: NDArray[np.int64]) -> None:
        """Learn the noisy counts of votes ``(K,)`` on the samples of `lesson`."""
        training, teachers = self._spec.training, self._spec.model.teachers
        share = torch.from_numpy(answer.astype(np.float32)) / teachers
        by_majority = training.labels == "majority"
        label = (share > 0.5).float() if by_majority else share
        teach = self.pair.teach_student if by_majority else self.pair.teach_shares
        self._memory.append((torch.from_numpy(self.lesson().samples), label))
        samples, labels = (torch.cat(parts) for parts in zip(*self._memory, strict=True))
        random = self._random("student")
        for _ in range(training.student_steps):
            drawn = torch.from_numpy(random.integers(len(labels), size=training.student_batch))
            teach(samples[drawn], labels[drawn])
        random = self._random("generator")
        for _ in range(training.generator_steps):
            self.pair.teach_generator(self._normals(random, training.generator_batch))
        self.learned += 1

    def _random(self, purpose: str) -> np.random.Generator:
        return self._spec.streams.numpy(f"{purpose}/{self.learned}")

    def _normals(self, random: np.random.Generator, count: int) -> Tensor:
        return normals(random, count, self._spec.model.latent)

    def tensors(self) -> dict[str, Tensor]:
        """Return the networks, the student's memory, and how many steps were learned."""
        width = TransitionEncoder.from_json(self._spec.encoder).width
        shape = (0, self._spec.training.votes_per_step)
        samples = [torch.zeros(*shape, width), *(one[None] for one, _ in self._memory)]
        labels = [torch.zeros(shape), *(one[None] for _, one in self._memory)]
        return {
            **self.pair.tensors(),
            _SAMPLES: torch.cat(samples),
            _LABELS: torch.cat(labels),
            _LEARNED: torch.tensor(self.learned),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` returned."""
        self.pair.restore(tensors)
        self._memory.clear()
        self._memory.extend(zip(tensors[_SAMPLES], tensors[_LABELS], strict=True))
        self.learned, self._lesson = int(tensors[_LEARNED]), None


def normals(random: np.random.Generator, count: int, latent: int) -> Tensor:
    """Return normal numbers ``(count, latent)``."""
    return torch.from_numpy(random.standard_normal((count, latent), np.float32))


class Drawer:
    """Draws rows of the generator's moving average; post-processing.

    Args:
        model: sizes.
        encoder: of rows.
        parameters: of the generator, ``(P,)``.
    """

    def __init__(
        self, model: AdversaryConfig, encoder: TransitionEncoder, parameters: Tensor
    ) -> None:
        self._latent = model.latent
        self._network = Generator(
            model.latent,
            (model.generator_width,) * model.generator_layers,
            encoder.width,
            torch.Generator().manual_seed(0),
        )
        FlatParameters(self._network).load(parameters)

    def rows(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """Return ``count`` standardised rows ``(N, D)``."""
        with torch.no_grad():
            drawn: NDArray[np.float32] = self._network(normals(random, count, self._latent)).numpy()
        return drawn
