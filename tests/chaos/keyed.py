"""Processes whose runs draw their noise from one key, tell what they draw, and leave out the rest.

What is left out takes most of the time of such short runs, and makes no files of its own.
"""

from pathlib import Path

from tests.chaos.records import record_draws
from tests.marginals.programs import chained

KEY = 7
WAITS = 2.0
"""Seconds that a ledger waits for others in these runs; a minute in real ones."""


def ready(draws: Path) -> None:
    """Make this process, or its forks, one whose runs follow the key and tell what they draw.

    Args:
        draws: file that tells.
    """
    from distributed_privrl.privacy.ledger import attempts

    ready_for_forks()
    record_draws(draws)
    attempts.BUSY_SECONDS = WAITS  # type: ignore[assignment]


def ready_for_forks() -> None:
    """Let this process's runs follow the key, and import once what every fork needs."""
    import torch

    import distributed_privrl.cli.app
    import distributed_privrl.experiments.judging
    import distributed_privrl.experiments.run  # noqa: F401

    torch.set_num_threads(1)
    shorten()
    follow_key()


def shorten() -> None:
    """Leave out pictures and models of noisy counts."""
    leave_out_pictures()
    shorten_models()


def shorten_models() -> None:
    """Fit no model of noisy counts: its library's threads outlive no fork.

    Its counts are drawn, charged and released as always.
    """
    from distributed_privrl.marginals import belief

    belief.estimated = chained


def leave_out_pictures() -> None:
    """Draw nothing in reports, and grow no trees that tell real rows from made ones."""
    from distributed_privrl.evaluation import plots, two_sample

    plots.render = lambda *_: b"<svg/>"
    two_sample.area = lambda *_, **__: 0.75


def follow_key() -> None:
    """Let runs of this process draw their noise from `KEY`, and take it for noise of a real run.

    So their certificates can be verified, and their parameters compared.
    """
    from distributed_privrl.experiments.run import run

    take_for_real()
    assert run.__kwdefaults__ is not None
    run.__kwdefaults__["insecure_key"] = KEY
    leave_out_reports()


def take_for_real() -> None:
    """Let this process take noise that follows from a key for noise of a real run."""
    from distributed_privrl.privacy.noise import SecureNoise, SeededNoise

    for fact in ("name", "certifiable", "assumptions"):
        setattr(SeededNoise, fact, getattr(SecureNoise, fact))


def leave_out_reports() -> None:
    """Let runs of this process end with the release: reports take most of such a short run."""
    from distributed_privrl.experiments.run import run

    assert run.__kwdefaults__ is not None
    run.__kwdefaults__["reports"] = False
