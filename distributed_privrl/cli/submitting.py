"""``submit``: a run or a sweep as a job of a Ray cluster."""

import json
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distributed_privrl.cli.failures import InterruptedRunError
from distributed_privrl.cli.helptext import Overrides, examples
from distributed_privrl.cli.resuming import AUTO

if TYPE_CHECKING:
    from distributed_privrl.runtime.jobs import JobClient, Upload

CONFIG_NAME, BOUNDS_NAME = "config.yaml", "bounds.yaml"


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    address = "--address http://head.internal:8265"
    app.command(
        "submit",
        epilog=examples(
            f"privrl submit stays.yaml {address} --out /shared/runs/stays"
            " --ledger file:/secrets/ledger",
            f"privrl submit stays.yaml {address} --out s3://clinic/runs/stays"
            " --ledger file:/secrets/ledger",
            f"privrl submit sweep.yaml {address} --out /shared/sweep --ledger file:/secrets/ledger"
            " --no-follow",
            f"privrl submit --attach raysubmit_gGz8bfiEv5yNRs3y {address}",
        ),
    )(submit)


def submit(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.yaml", help="of a run or a sweep; not with --attach"),
    ] = None,
    address: Annotated[
        str, typer.Option(metavar="URL", help="dashboard of the cluster's head: http://HOST:8265")
    ] = "",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="the run's folder: s3://.., gs://.., or one that all the cluster's nodes see",
        ),
    ] = None,
    overrides: Overrides = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="the ledger, as the cluster reaches it: file:PATH of a file there that holds its"
            " URL, or a PostgreSQL URL without a password (default: what PRIVRL_LEDGER is there)",
        ),
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="the datasets, a folder or a URI, as the nodes see them (default: what is set"
            " there)",
        ),
    ] = None,
    shared: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="a folder that outlives the cluster, if its file system does not tell; may be"
            " repeated",
        ),
    ] = None,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="interpreter on the cluster that has privrl")
    ] = "python",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="run what its plan calls hopeless, too")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(help="show what the job prints until it has ended, and exit as it does"),
    ] = True,
    on_interrupt: Annotated[
        Literal["detach", "cancel"],
        typer.Option(metavar="detach|cancel", help="what Ctrl-C does: leave the job, or stop it"),
    ] = "detach",
    certificate: Annotated[
        Path, typer.Option(metavar="FILE", help="where the run's certificate is written")
    ] = Path("certificate.json"),
    attach: Annotated[
        str | None, typer.Option(metavar="JOB", help="follow a job that was handed in before")
    ] = None,
) -> None:
    """Run a configuration, or a sweep, as a job of a Ray cluster.

    The configuration and its bounds file travel, and nothing else: datasets, the ledger and --out
    are named as the cluster sees them. A job that is handed in again goes on where it was. What the
    Jobs API keeps, everybody with the cluster's token can read: so a ledger's password is read on
    the cluster from a file. The command ends with the job's exit code, and brings back the run's
    certificate.
    """
    from distributed_privrl.core.errors import ConfigError

    if not address:
        raise ConfigError("--address is missing: http://HOST:8265 of the cluster's head")
    if (config is None) == (attach is None):
        raise ConfigError("give CONFIG.yaml to hand a job in, or --attach JOB to follow one")
    if certificate.exists():
        raise ConfigError(f"{certificate} is there already: move it, or name another --certificate")
    upload = None
    if config is not None:
        if out is None:
            raise ConfigError("--out is missing: s3://BUCKET/KEY, or a folder that all nodes see")
        upload = upload_of(
            config,
            overrides or [],
            out=out,
            ledger=ledger,
            datasets=datasets,
            shared=shared or [],
            python=python,
            anyway=anyway,
        )
    from distributed_privrl.runtime import jobs

    client = jobs.open_client(address)
    job = attach if upload is None else jobs.hand_in(client, upload)
    assert job is not None
    line = shlex.join(["privrl", "submit", "--attach", job, "--address", address])
    if not follow:
        typer.echo(f"job {job} was handed in; follow it with `{line}`")
        return
    typer.echo(f"job {job}", err=True)
    try:
        for said in jobs.follow(client, job):
            typer.echo(said)
    except KeyboardInterrupt:
        raise _interrupted(client, job, line, cancel=on_interrupt == "cancel") from None
    _bring_back(client, job, certificate)


def upload_of(
    config: Path,
    overrides: list[str],
    *,
    out: str,
    ledger: str | None,
    datasets: str | None,
    shared: list[str],
    python: str,
    anyway: bool,
) -> "Upload":
    """Return what a job is given.

    Raises:
        ConfigError: the configuration is wrong, its bounds file is missing or too large, or a
            folder of the cluster has no absolute path.
        UnsafeError: the ledger is a file of SQLite, or a password would travel, in it or in a URI.
    """
    from distributed_privrl.core.places import check_folder, place_of
    from distributed_privrl.runtime.jobs import SHARED_VARIABLE, Upload

    place = place_of("--out", out)
    for option, folder in (("out", out), ("datasets", datasets)):
        _check_absolute(option, folder)
    verb, values, bounds = _values_of(config, overrides)
    if verb == "sweep":
        check_folder("--out of a sweep", Path(out))
    files: dict[str, bytes] = {}
    if isinstance(bounds, Path):
        files[BOUNDS_NAME] = _bounds(bounds)
        values["data"]["bounds"] = BOUNDS_NAME
    elif isinstance(searched := getattr(bounds, "search", None), Path):
        files[BOUNDS_NAME] = _bounds(searched)
        values["data"]["bounds"]["search"] = BOUNDS_NAME
    files[CONFIG_NAME] = _yaml(values)
    variables = {} if ledger is None else {"PRIVRL_LEDGER": _checked_ledger(ledger)}
    if datasets is not None:
        variables["MINARI_DATASETS_PATH"] = str(place_of("--datasets", datasets))
    if shared:
        variables[SHARED_VARIABLE] = ":".join(shared)
    words = [python, "-m", "distributed_privrl.cli", verb, CONFIG_NAME, "--out", str(place), AUTO]
    return Upload(
        files=files,
        words=[*words, *(["--anyway"] if anyway else [])],
        variables=variables,
        name=f"privrl {verb} {config.name}",
    )


def _values_of(config: Path, overrides: list[str]) -> tuple[str, dict[str, Any], object]:
    """Return the verb of a configuration, its values with the overrides, and ``data.bounds``."""
    from distributed_privrl.core.yaml_files import read_yaml
    from distributed_privrl.experiments.registry import load_config
    from distributed_privrl.experiments.sweeps.config import SELECTION, load_sweep

    if SELECTION in read_yaml(config):
        sweep = load_sweep(config, overrides)
        return "sweep", sweep.to_json(), sweep.base.data.bounds
    loaded = load_config(config, overrides)
    return "run", loaded.model_dump(mode="json", exclude_unset=True), loaded.data.bounds


def _check_absolute(option: str, folder: str | None) -> None:
    """Refuse a folder that a job would look for in its working folder, which ends with it."""
    from distributed_privrl.core.errors import ConfigError

    if folder is not None and "://" not in folder and not PurePosixPath(folder).is_absolute():
        raise ConfigError(
            f"--{option} {folder} is no absolute path: a job's working folder is a new one on each"
            f" machine, and ends with it; give the folder as the cluster sees it, /shared/{folder}"
        )


def _bounds(path: Path) -> bytes:
    from distributed_privrl.core.errors import ConfigError
    from distributed_privrl.data.bounds import check_bounds_file
    from distributed_privrl.runtime.jobs import UPLOAD_BYTES

    if not path.is_file():
        raise ConfigError(f"data.bounds: no file {path}")
    if (size := path.stat().st_size) > UPLOAD_BYTES:
        raise ConfigError(
            f"data.bounds: {path} has {size / 1e6:.0f} MB, {UPLOAD_BYTES / 1e6:.0f} MB at most"
            " are uploaded: is it a table?"
        )
    check_bounds_file(path)  # nothing else may travel under this name
    return path.read_bytes()


def _yaml(values: dict[str, Any]) -> bytes:
    import yaml

    return yaml.safe_dump(values, sort_keys=False).encode()


def _checked_ledger(ledger: str) -> str:
    """Return a ledger's URL that everybody with the cluster's token may read."""
    from distributed_privrl.core.errors import UnsafeError
    from distributed_privrl.privacy.ledger.storage import holds_password, is_reference, ledger_url

    if is_reference(ledger):
        return ledger
    url = ledger_url(ledger)
    if url.get_backend_name() == "sqlite":
        raise UnsafeError(
            "a job's ledger must outlive its cluster: give PostgreSQL, by --ledger"
            " file:/secrets/ledger of a file there that holds its URL"
        )
    if holds_password(url):
        raise UnsafeError(
            "a password in --ledger would be shown to everybody with the cluster's token: write the"
            " URL into a file there, and give --ledger file:/secrets/ledger"
        )
    return ledger


def _interrupted(client: "JobClient", job: str, line: str, *, cancel: bool) -> InterruptedRunError:
    from distributed_privrl.runtime import jobs

    if not cancel:
        return InterruptedRunError(f"left alone: job {job} goes on; follow it with `{line}`")
    typer.echo("stopping the job: a last checkpoint is written", err=True)
    if jobs.stop(client, job):
        return InterruptedRunError(f"job {job} is stopped: hand the same in again to go on")
    return InterruptedRunError(f"job {job} does not stop yet: look again with `{line}`")


def _bring_back(client: "JobClient", job: str, certificate: Path) -> None:
    """Write the certificate that a job told, if it did, and exit as the job did."""
    from distributed_privrl.core.files import write_atomically
    from distributed_privrl.privacy.verification import verify_certificate
    from distributed_privrl.runtime import jobs

    code = jobs.exit_code_of(client, job)
    found = jobs.certificate_of(client, job)
    if found is not None:
        write_atomically(certificate, json.dumps(found, indent=2) + "\n")
        if found.get("status") == "valid":
            verify_certificate(certificate, allow_missing_outputs=True)  # they are there
        typer.echo(f"certificate: {certificate} ({found.get('status')})", err=True)
    if code:
        typer.echo(f"job {job} ended with exit code {code}", err=True)
        raise typer.Exit(code)
