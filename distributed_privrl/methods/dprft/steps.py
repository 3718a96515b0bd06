"""What steps of the tuning measured: kept beside its checkpoint, told once votes are settled."""

import json
from collections.abc import Mapping
from pathlib import Path

from distributed_privrl.core.files import write_atomically
from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, settled_answer
from distributed_privrl.text.stopping import StepMetrics

STEPS = "steps.json"
_SHOWN = ("reward", "gate_rate", "kl", "kl_weight", "entropy", "tokens", "distinct")


def keep_step(folder: Path, metrics: StepMetrics) -> None:
    """Keep what a step measured; steps that are made again after a kill replace what was kept.

    Args:
        folder: of the training.
        metrics: of the step.

    Raises:
        StorageError: the file cannot be written.

    Privacy: post-processing of the scorer's answers and of public facts. Shares of time
        are left out: what voters do on the same machine may slow a step down.
    """
    path = folder / STEPS
    steps = [one for one in _kept(path) if one["step"] < metrics.step]
    steps.append({name: getattr(metrics, name) for name in ("step", *_SHOWN)})
    write_atomically(path, json.dumps(steps) + "\n", mode=0o600)


def step_metrics(
    folder: Path, entry: LedgerEntry, stage: str
) -> tuple[Mapping[str, PublicValue | ReleasedValue], ...]:
    """Return a line of ``metrics.jsonl`` for each step; none where nothing was kept.

    Args:
        folder: of the training.
        entry: that paid for the votes.
        stage: of the certificate.

    Raises:
        UnsafeError: the entry is still open.

    Privacy: rewards are noisy votes divided by the number of units, public or counted with noise,
        and all else is of texts of a model that learned from them: post-processing of the entry's
        rounds. How many steps there are is so, too. No exact vote is among the arguments.
    """
    answer = settled_answer(entry, _kept(folder / STEPS))
    return tuple(
        {
            "stage": PublicValue(stage),
            "step": PublicValue(int(answer.value[index]["step"])),
            **{
                name: answer.map(lambda steps, index=index, name=name: steps[index][name])
                for name in _SHOWN
            },
        }
        for index in range(len(answer.value))
    )


def _kept(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    found: list[dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return found
