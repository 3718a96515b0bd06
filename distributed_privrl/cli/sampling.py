"""``sample``: more rows or trajectories of a finished run's model."""

import contextlib
from typing import Annotated

import typer

from distributed_privrl.cli.helptext import LedgerUrl, examples
from distributed_privrl.cli.text import show_values


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "sample",
        epilog=examples(
            "privrl sample runs/stays --size 100000",
            "privrl sample runs/stays --size 500 --dataset clinic/stays-small-v0",
        ),
    )(sample)


def sample(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the --out of a finished run")],
    size: Annotated[int, typer.Option(metavar="N", min=1, help="rows, or trajectories, to draw")],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="ID", help="id of the new dataset (default: the release's, -more)"),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    """Draw a new dataset from the model of a finished run, at no cost in epsilon.

    It costs nothing because the model was released: whatever is drawn from it follows from what was
    paid for. The new dataset has a certificate of the same stages, in RUN/samples. The same id and
    size give the same rows again; another id gives other ones.
    """
    from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.stored_folders import opened_folder
    from distributed_privrl.experiments.sampling import finished_config, sample_run

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(opened_folder(place_of("RUN", run), name="RUN"))
        config = finished_config(folder, size, dataset)
        stack.enter_context(termination_as_interrupt())
        executor = stack.enter_context(contextlib.closing(start_executor(config.runtime)))
        progress = stack.enter_context(shown_progress())
        made = sample_run(folder, config, executor, ledger_url=ledger, progress=progress)
    epsilon = made.certificate.epsilon
    show_values(
        {
            "drawn": f"{made.dataset} ({size} {config.output.COUNTED})",
            "epsilon": "none: the run was not private"
            if epsilon is None
            else f"{epsilon:.4f}, which the run has paid",
            "certificate": f"{made.path} ({made.certificate.status})",
        }
    )
