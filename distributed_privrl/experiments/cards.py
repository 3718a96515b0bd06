"""The card of a released dataset: a README.md for somebody who has nothing but its folder.

Its header is that of Hugging Face's dataset cards, which other catalogues read, too.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.declared import AnyKind, DateKind, LabelledKind, limit_of, rises
from distributed_privrl.data.labels import column_labels, shown_columns
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY
from distributed_privrl.evaluation.explanation import explain, explain_stages
from distributed_privrl.evaluation.report import TRAINED_AGENTS, WHOLE_TRAJECTORIES
from distributed_privrl.experiments.public_facts import MOST_VALUES, ROLES
from distributed_privrl.privacy.units import TRANSITION, unit_in_words

FILE_NAME = "README.md"
SYNTHETIC_KEY = "synthetic"
"""True in the metadata of rows that a model drew; stable prefixes of experts are real rows."""
FOR_AGENTS = "For those who train agents"
"""Under it stands what only they need to know of a table of people."""
_OF_AGENTS = (WHOLE_TRAJECTORIES, TRAINED_AGENTS)
_TABLE_TASKS = ("tabular-classification", "tabular-regression")
_AGENT_TASKS = ("reinforcement-learning",)
_OF_POLICIES = (
    "Decisions about people by a policy that was judged on these rows alone: judge it on real"
    " ones first."
)
_NO_POLICIES = f"not good for {_OF_POLICIES[0].lower()}{_OF_POLICIES[1:]}"
_SIZES = {
    10**3: "n<1K",
    10**4: "1K<n<10K",
    10**5: "10K<n<100K",
    10**6: "100K<n<1M",
    10**7: "1M<n<10M",
    10**8: "10M<n<100M",
}
_LARGEST = "100M<n<1B"


def write_card(
    store: DatasetStore, dataset: str, *, report: Mapping[str, Any] | None = None
) -> None:
    """Write README.md into a released dataset's folder; without a valid certificate nothing.

    Args:
        store: where the dataset lies.
        dataset: its id.
        report: content of the run's public ``report.json``, whose numbers are added.

    Raises:
        ConfigError: no such dataset.
        StorageError: the file cannot be written.

    Privacy: post-processing of the certificate, of the public report and of what is public by
        declaration; no unit, relation or event of its own. It reads no sensitive dataset, neither
        its rows nor its metadata.
    """
    info = store.info(dataset)
    if info.certificate.get("status") != "valid":
        return
    write_atomically(store.folder(dataset) / FILE_NAME, card(info, report=report), mode=0o644)
    store.changed(dataset)


def card(
    info: DatasetInfo,
    *,
    report: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Return the card of a dataset that was released, or declared public.

    Args:
        info: of the dataset.
        report: as in `write_card`.
        files: a glob of data files for each split, for readers that load them by the header.
    """
    certificate = info.certificate
    rows = info.total_steps.open(Purpose.RELEASED)
    parts = [
        _header(info, rows, files),
        f"# {info.id}",
        " ".join(_what_it_is(info, rows)),
        *_signed(info),
        "## Privacy",
        *_listed(explain(certificate or {"status": "declared public"})),
    ]
    if certificate:
        parts += ["## How it was made", *_listed(explain_stages(certificate)), _how(certificate)]
    parts += ["## What it is not good for", *_listed(_limits(info))]
    table = info.declared is not None
    parts += ["## Columns", *(_table_columns(info) if table else _listed(_columns(info)))]
    told = (report or {}).get("sections", ())
    later = [one for one in told if table and one["title"] in _OF_AGENTS]
    for section in told:
        parts += _section(section, roles=not table) if section not in later else []
    if table:
        parts += [f"## {FOR_AGENTS}", *_roles(info), *_listed([*_columns(info), _NO_POLICIES])]
    for section in later:
        parts += _section(section, roles=True, level=3)
    return "\n\n".join(part for part in parts if part) + "\n"


def card_beside(store: DatasetStore, dataset: str, files: Mapping[str, str]) -> str:
    """Return the card for a folder of files of a dataset's rows, which its header names.

    It goes on as the card in the dataset's own folder does, with what the public report told, where
    that one is of the same certificate.

    Args:
        store: where the dataset lies.
        dataset: id of one that was released, or declared public.
        files: as in `card`.

    Raises:
        ConfigError: no such dataset.

    Privacy: post-processing of what was released; no unit, relation or event of its own.
    """
    info = store.info(dataset)
    made = card(info, files=files)
    path = store.folder(dataset) / FILE_NAME
    if not info.certificate or not path.is_file():
        return made
    own = path.read_text(encoding="utf-8", errors="replace")
    header, _ = _parted(made)
    body = _parted(own)[1]
    return header + body if f"`{info.certificate['digest']}`" in body else made


def _parted(text: str) -> tuple[str, str]:
    """Return the header of a card, with its last line, and what follows it."""
    header, end, body = text.partition("\n---\n")
    return header + end, body


def _header(info: DatasetInfo, rows: int, files: Mapping[str, str] | None) -> str:
    table = info.declared is not None
    values: dict[str, Any] = {
        "pretty_name": info.id,
        "task_categories": list(_TABLE_TASKS if table else _AGENT_TASKS),
        "size_categories": [next((name for top, name in _SIZES.items() if rows < top), _LARGEST)],
        "tags": ["tabular" if table else "offline-reinforcement-learning"],
    }
    if info.certificate:
        values["tags"] += ["differential-privacy", *(["synthetic"] if _is_synthetic(info) else [])]
    if files:
        split = [{"split": name, "path": path} for name, path in files.items()]
        values["configs"] = [{"config_name": "default", "data_files": split}]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---"


def _what_it_is(info: DatasetInfo, rows: int) -> list[str]:
    table = None if info.declared is None else info.declared.columns
    count = f"{rows:,} {'transitions' if table is None else 'rows'}"
    if info.kind == "trajectories":
        several = f"{info.total_trajectories.open(Purpose.RELEASED):,}"
        name = None if table is None else table.trajectory
        in_all = f" of {several} values of `{_plain(name)}`" if name else ""
        count += in_all or f" in {several} trajectories"
    known = f"The environment is `{_plain(info.environment)}`." if info.environment else ""
    if not info.certificate:
        return [f"{count}, which who made them declared public.", known]
    certificate = info.certificate
    made = (
        "synthetic: drawn from a model that learned under differential privacy, and none taken over"
        " from the sensitive rows"
        if _is_synthetic(info)
        else "real ones that differential privacy lets out, because so many units have them in"
        " common"
    )
    return [
        f"{count}, all of them {made} ({certificate['method']}).",
        f"Epsilon is {certificate['epsilon']:.4g} and delta {certificate['delta']:.3g}, for one"
        f" {_unit(info)}.",
        known,
    ]


def _units(info: DatasetInfo) -> list[str]:
    """Return the units that the certificate protects."""
    return sorted({str(stage["unit"]) for stage in info.certificate["stages"]})


def _unit(info: DatasetInfo) -> str:
    """Return what a sentence calls one of them."""
    return _plain(" or ".join(map(unit_in_words, _units(info))) or "unit")


def _is_synthetic(info: DatasetInfo) -> bool:
    return info.metadata.open(Purpose.RELEASED).get(SYNTHETIC_KEY) is True


def _signed(info: DatasetInfo) -> list[str]:
    """Return who answers for the dataset, in Minari's keys, where they are given."""
    said = info.metadata.open(Purpose.RELEASED)
    names = {
        "author": "Author",
        "author_email": "Contact",
        "algorithm_name": "Algorithm",
        "code_permalink": "Code",
    }
    found = []
    for key, name in names.items():
        value = said.get(key)
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        if text:
            found.append(f"* {name}: {_plain(text)}")
    return ["\n".join(found)] if found else []


def _how(certificate: Mapping[str, Any]) -> str:
    versions = certificate.get("versions", {})
    made_by = f"distributed_privrl {versions.get('distributed_privrl', '')}".strip()
    return (
        f"Made by {made_by} on {str(certificate.get('created'))[:10]}. The certificate is under"
        " `privacy_certificate` in `data/metadata.json` (in a folder for Hugging Face it is"
        f" `certificate.json`), digest `{certificate.get('digest')}`."
        " `privrl certificate verify` recomputes its epsilon, and compares the hashes of the"
        " files; it cannot show that what the owner declared is true."
    )


def _limits(info: DatasetInfo) -> list[str]:
    if not info.certificate:
        return ["Whatever needs a promise of privacy: none was made for these rows."]
    units = _units(info)
    unit = _unit(info)
    found = [
        f"Facts about any one {unit}: what looks like one is no evidence of it, but for what the"
        " privacy above allows.",
        "What only few units have in common: noise hides it, or invents it.",
        "Exact counts, tests and intervals: usual ones leave out the noise, and are too narrow.",
        *([_OF_POLICIES] if info.declared is None else []),
        "Proof of use: this card holds no comparison with the real rows but for values that were"
        " released with noise. Ask the owner what the rows keep.",
    ]
    if info.kind == "transitions" and units != [TRANSITION]:
        found.append(
            f"What happens to one {unit} over time: each row is on its own, and none tells which"
            " others belong to it."
        )
    return found


def _table_columns(info: DatasetInfo) -> list[str]:
    """Return the columns of a table as its schema names them, in words; none: it declared none."""
    table = info.declared
    if table is None:
        return []
    columns = table.columns
    found = [*table.part("observation"), *table.part("action")]
    found += [(name, table.kind(name)) for name in columns.of("reward")]
    about = [f"`{_plain(name)}`: {_kind_in_words(kind)}" for name, kind in found]
    if info.kind == "trajectories":
        name = _plain(columns.trajectory or TRAJECTORY)
        about += [
            f"`{name}`: numbers of whom rows belong to, from 0; they name nobody in the real table",
            "`step`: place of a row among those of its number, from 0, whatever sorted the real"
            " ones",
        ]
    if info.has_successors:
        end = _plain(columns.termination or "terminated")
        about += [
            f"the same names with `next_` before them: what stands in the row that follows"
            f"{', and after a last row what means nothing' if info.last_rows_copied else ''};"
            f" `{end}`: whether the rows of its number end there; `truncated`: whether they were"
            " cut there",
        ]
    return [
        "As `privrl export` writes them to a table, and `pr.load` gives them to pandas:",
        *_listed(about),
    ]


def _kind_in_words(kind: AnyKind) -> str:
    """Return what a column holds, by its declared kind."""
    if isinstance(kind, LabelledKind):
        values = [f'"{_plain(value)}"' for value in kind.values]
        more = [] if len(values) <= MOST_VALUES else ["..."]
        words = f"one of {', '.join([*values[:MOST_VALUES], *more])}"
    elif isinstance(kind, DateKind):
        words = "a date" if kind.unit == "days" else f"a time, in {kind.unit}"
    else:
        words = "a whole number" if kind.whole else "a number"
    gaps = ", or missing" if kind.missing in ("own", "indicator") else ""
    limit = limit_of(kind)
    below = "" if limit is None else f", never above `{_plain(limit)}`"
    rising = ", which never falls" if rises(kind) else ""
    return f"{words}{below}{rising}{gaps}{', which a person keeps' if kind.lasting else ''}"


def _roles(info: DatasetInfo) -> list[str]:
    """Return which columns of a table an agent observes, chooses and is rewarded by."""
    table = info.declared
    assert table is not None
    named = [
        ", ".join(f"`{_plain(name)}`" for name in table.columns.of(role))
        or "always 0, for the table has none"
        for role in ROLES
    ]
    return [
        "The folder is a dataset of offline reinforcement learning, which `minari` loads: a row is"
        f" a transition whose observation is {named[0]}, whose action is {named[1]} and whose"
        f" reward is {named[2]}."
    ]


def _columns(info: DatasetInfo) -> list[str]:
    shown = shown_columns(info)
    if not info.has_successors:  # stored copies of the observation are no columns of the table
        layout = RowLayout(info.observation_space, info.action_space)
        shown = shown[shown < layout.blocks["reward"].stop]
    labels = column_labels(info)
    names = [f"`{_plain(labels[place])}`" for place in shown]
    return [
        f"numbers of a row, in order: {', '.join(names)}",
        f"observations: `{_plain(info.observation_space)}`",
        f"actions: `{_plain(info.action_space)}`",
    ]


def _section(section: Mapping[str, Any], *, roles: bool, level: int = 2) -> list[str]:
    """Return a section of the public report as a table; one without numbers has none.

    Args:
        section: of the report.
        roles: what is explained by a column's role alone says so.
        level: of its heading.
    """
    metrics = section.get("metrics", ())
    if not metrics:
        return []
    hidden = () if roles else ROLES
    read = [_plain(one.get("explanation", "")) for one in metrics]
    rows = [
        f"| {_plain(one['name'])} | {_shown(one['value'])} | {'' if how in hidden else how} |"
        for one, how in zip(metrics, read, strict=True)
    ]
    return [
        f"{'#' * level} {_plain(section['title'])}",
        _plain(section.get("explanation", "")),
        "\n".join(["| what | value | how to read it |", "|---|---|---|", *rows]),
    ]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _plain(value)


def _plain(value: Any) -> str:
    """Return a text on one line that is neither a cell's end nor a tag to Markdown."""
    text = " ".join(str(value).split())
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _listed(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"* {line}" for line in lines)] if lines else []


def algorithm_name(method: str) -> str:
    """Return what Minari calls the algorithm that made a dataset."""
    return f"{method} (distributed_privrl {importlib.metadata.version('distributed_privrl')})"
