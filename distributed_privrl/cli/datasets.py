"""``collect``, ``import``, ``split``, ``export``, ``remove``: datasets in, apart, out and away."""

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributed_privrl.cli.helptext import LedgerUrl, examples
from distributed_privrl.cli.logs import tell_owner
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Purpose

if TYPE_CHECKING:
    from distributed_privrl.data.metadata import DatasetInfo


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(
        "collect",
        epilog=examples(
            "privrl collect maze2d-umaze --dataset maze/umaze-v0",
            "privrl collect maze2d-medium --dataset maze/medium-v0 --steps 200000 --seed 1",
            "privrl collect cartpole-mixed --dataset gym/cartpole-v0 --public",
            "privrl collect experts-cartpole --dataset experts/cartpole-v0 --experts 3000",
        ),
    )(collect)
    app.command(
        "import",
        epilog=examples(
            "privrl import stays.csv --schema stays.yaml --dataset clinic/stays-v0",
            "privrl import rows.parquet --schema rows.yaml --dataset plant/rows-v1",
            "privrl import maze2d-umaze.hdf5 --schema d4rl.yaml --dataset maze/d4rl-v0",
            "privrl import notes.jsonl --schema notes.yaml --dataset clinic/notes-v0",
        ),
    )(import_table)
    app.command(
        "split",
        epilog=examples(
            "privrl split clinic/stays-v0 --held-out 0.2",
            "privrl split clinic/stays-v0 --held-out 0.1 --seed 1",
        ),
    )(split)
    app.command(
        "export",
        epilog=examples(
            "privrl export clinic/stays-private-v0 --format csv --out stays-private.csv"
            " --rows-only",
            "privrl export clinic/stays-private-v0 --format csv --out stays-private.csv"
            " --schema stays.yaml",
            "privrl export maze/umaze-v0 --format parquet --out umaze.parquet",
            "privrl export maze/umaze-v0 --format npz --out umaze.npz",
            "privrl export clinic/stays-private-v0 --format rllib --out bridge",
            "privrl export clinic/stays-private-v0 --format hf-dataset --out stays-private",
        ),
    )(export_table)
    app.command(
        "remove",
        epilog=examples(
            "privrl remove clinic/stays-v0",
            "privrl remove clinic/stays-v0 --anyway",
        ),
    )(remove)


def collect(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="what to run: maze2d-open, maze2d-umaze, maze2d-medium, maze2d-large,"
            " maze2d-eval-umaze, maze2d-eval-medium, maze2d-eval-large (each with -dense, too),"
            " maze2d-random,"
            " icu-sepsis, linear-mdp, random-mdp, gridworld, cartpole-mixed, pendulum-mixed,"
            " pendulum-replay, cartpole-balance-replay, cartpole-swingup-replay,"
            " halfcheetah-medium-replay, halfcheetah-medium, halfcheetah-medium-expert,"
            " hopper-medium-replay, hopper-medium, hopper-medium-expert,"
            " walker2d-medium-replay, walker2d-medium, walker2d-medium-expert,"
            " experts-cartpole, experts-acrobot, experts-lunarlander or experts-hiv",
        ),
    ],
    dataset: Annotated[
        str, typer.Option(metavar="ID", help="id of the new dataset, [namespace/]name-vN")
    ],
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="steps to make (default: the recipe's)")
    ] = None,
    experts: Annotated[
        int | None, typer.Option(metavar="M", help="number of experts (recipes experts-...)")
    ] = None,
    trajectories: Annotated[
        int | None,
        typer.Option(metavar="N", help="number of trajectories; of each expert, if there are any"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="public seed: same seed, same data")] = 0,
    options: Annotated[
        list[str] | None,
        typer.Option("-o", metavar="KEY=VALUE", help="an option of the recipe; may be repeated"),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="declare that the rows are nobody's secret"),
    ] = False,
) -> None:
    """Make a dataset by running a policy in an environment.

    Nothing is downloaded. The dataset lies in MINARI_DATASETS_PATH, else in ~/.minari/datasets.
    """
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.collection import collect as collect_dataset
    from distributed_privrl.core.config import with_overrides
    from distributed_privrl.data.store import DatasetStore

    counts = {"experts": experts, "trajectories": trajectories}
    given = {name: count for name, count in counts.items() if count is not None}
    with shown_progress() as progress:
        info = collect_dataset(
            recipe,
            dataset=dataset,
            store=DatasetStore(),
            steps=steps,
            seed=seed,
            options=with_overrides(given, options or []),
            public=public,
            progress=partial(progress, f"collecting {recipe}"),
            training_progress=partial(progress, f"collecting {recipe}: training policies"),
        )
    typer.echo(f"{info.id}: {info.total_steps.open(Purpose.OWNER)} steps in {_trajectories(info)}")


_MANY_TRAJECTORIES, _SHORT_TRAJECTORIES = 2000, 100
"""From how many trajectories on, of how many steps at most on average, episodes are slow."""
_EPISODES_A_MINUTE = 40_000


def import_table(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="a .csv, .parquet, .npz, .hdf5, .h5 or .jsonl file"),
    ],
    schema: Annotated[
        Path, typer.Option(metavar="S.yaml", help="which column or array is what, and the spaces")
    ],
    dataset: Annotated[
        str, typer.Option(metavar="ID", help="id of the new dataset, [namespace/]name-vN")
    ],
) -> None:
    """Make a dataset of a CSV or Parquet table, or of NPZ or HDF5 arrays, a row a transition.

    The schema says which column or array is what: observations, actions, reward, the trajectory,
    the unit that is protected, the kinds of columns (categories, flags, dates) and the spaces. With
    split_at_flags it reads D4RL's files, with the trajectory column episode Minari's. A schema with
    a section text makes a dataset of documents: a JSONL or Parquet file with a column text, or a
    folder of .txt files.

    Notes on standard error say in how many rows, and of how many units, values are missing, not
    declared or outside their space, and which rows are left out. They are for the owner of the rows
    alone: do not publish them.
    """
    from distributed_privrl.data.corpus_datasets import corpus_schema, import_corpus
    from distributed_privrl.data.importing import import_file
    from distributed_privrl.data.schema import load_schema
    from distributed_privrl.data.store import DatasetStore

    texts = corpus_schema(schema)
    if texts is not None:
        told = import_corpus(file, texts, DatasetStore(), dataset)
        tell_owner(told.open(Purpose.OWNER))
        count = DatasetStore().info(dataset).total_steps.open(Purpose.OWNER)
        typer.echo(f"{dataset}: {count} document{'' if count == 1 else 's'}")
        return
    store, meaning = DatasetStore(), load_schema(schema)
    found = import_file(file, meaning, store, dataset)
    info = store.info(dataset)
    tell_owner((*found.open(Purpose.OWNER), *_slow(info)))
    kind = _trajectories(info) if info.kind == "trajectories" else "single rows"
    typer.echo(f"{info.id}: {info.total_steps.open(Purpose.OWNER)} transitions in {kind}")


def _slow(info: "DatasetInfo") -> list[str]:
    """Return what the owner may change before the dataset has a budget, so that reading is fast."""
    count, steps = (one.open(Purpose.OWNER) for one in (info.total_trajectories, info.total_steps))
    many = count > _MANY_TRAJECTORIES and steps < _SHORT_TRAJECTORIES * count
    if info.layout != "episodes" or not many:
        return []
    return [
        f"note to the owner: {count:,} short trajectories as episodes: each reading of them takes"
        f" {max(count // _EPISODES_A_MINUTE, 1)} min or more; the schema's line layout: packed"
        " makes it seconds, for this dataset and its releases"
    ]


def _trajectories(info: "DatasetInfo") -> str:
    return f"{info.total_trajectories.open(Purpose.OWNER)} trajectories"


def split(
    dataset: Annotated[str, typer.Argument(metavar="ID", help="id of the dataset")],
    held_out: Annotated[
        float,
        typer.Option("--held-out", metavar="SHARE", help="probability of each unit to be held out"),
    ],
    seed: Annotated[int, typer.Option(metavar="S", help="public seed of the choice")] = 0,
    ledger: LedgerUrl = None,
) -> None:
    """Split a dataset by units, before a run, so that an audit has rows the run has not seen.

    name-v0 becomes name-training-v0 and name-held-out-v0; each unit is held out with probability
    SHARE. Run on the training set alone: of a dataset and its sides one alone gets a budget.
    """
    from distributed_privrl.data.splitting import split as split_dataset
    from distributed_privrl.data.splitting import unit_of
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.accounts import check_splittable
    from distributed_privrl.privacy.ledger import Ledger

    store = DatasetStore()
    with contextlib.closing(Ledger(ledger)) as opened:
        check_splittable(store, opened, dataset)
    if not 0 < held_out < 1:
        raise ConfigError(f"--held-out={held_out:g} must lie between 0 and 1")
    sides = split_dataset(store, dataset, held_out_share=held_out, seed=seed)
    for info, share in zip(sides, (1 - held_out, held_out), strict=True):
        typer.echo(f"{info.id}: each {unit_of(info)} with probability {share:g}")


def export_table(
    dataset: Annotated[str, typer.Argument(metavar="ID", help="id of the dataset")],
    format: Annotated[  # noqa: A002
        Literal["csv", "parquet", "npz", "rllib", "hf-dataset"], typer.Option(help="what to write")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="file (rllib, hf-dataset: folder) to write; must not exist"
        ),
    ],
    seed: Annotated[
        int, typer.Option(metavar="S", help="public seed of the order of the rows (rllib)")
    ] = 0,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="S.yaml",
            help="names and kinds of columns (csv, parquet, hf-dataset; default: of the import)",
        ),
    ] = None,
    rows_only: Annotated[
        bool,
        typer.Option(
            "--rows-only",
            help="without next observations and ends, but those that the table had (csv, parquet)",
        ),
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """Write a dataset as one file, a row a transition; npz has D4RL's names of arrays.

    --rows-only makes a table shaped like the one that was imported: without what follows a row.

    rllib is a folder of Parquet files in RLlib's names, shuffled, with bridge.json beside them.
    hf-dataset is a folder that Hugging Face's datasets library loads, with a card and the
    certificate. Both are for datasets that were released with a valid certificate, or declared
    public and without a budget.
    """
    if rows_only and format in ("rllib", "hf-dataset"):
        raise ConfigError(f"--rows-only leaves out columns of csv and parquet, not of {format}")
    if format == "rllib":
        if schema is not None:
            raise ConfigError("--schema names the columns of tables; rllib has its own")
        from distributed_privrl.data.store import DatasetStore
        from distributed_privrl.runtime.rllib.bridge import export_for_rllib

        export_for_rllib(DatasetStore(), dataset, out, seed=seed, ledger_url=ledger)
        typer.echo(str(out))
        return
    from distributed_privrl.data.schema import load_schema
    from distributed_privrl.data.store import DatasetStore

    declared = None if schema is None else load_schema(schema).declared
    if format == "hf-dataset":
        from distributed_privrl.experiments.sharing import export_folder

        export_folder(DatasetStore(), dataset, out, declared=declared, ledger_url=ledger)
    else:
        from distributed_privrl.data.exporting import export

        export(DatasetStore(), dataset, format, out, declared=declared, rows_only=rows_only)
    typer.echo(str(out))


def remove(
    dataset: Annotated[str, typer.Argument(metavar="ID", help="id of the dataset")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="although a run, a release or a split needs it")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """Remove a dataset from the folder of all datasets, whole and at once.

    It is refused while a run that was charged to it, a certificate or a part of the same data that
    has a budget needs it. The ledger stays as it is: whoever imports the same rows again finds what
    was spent of them, under any id. Runs that read it as public rows are not known: they can no
    longer be reported or resumed.
    """
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.removal import remove_dataset
    from distributed_privrl.privacy.ledger import Ledger

    with contextlib.closing(Ledger(ledger)) as opened:
        account = remove_dataset(DatasetStore(), opened, dataset, anyway=anyway)
    kept = "" if account is None else f"; its account stays, with {account.left} left"
    typer.echo(f"{dataset}: removed{kept}")
