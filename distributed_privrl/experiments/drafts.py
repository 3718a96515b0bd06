"""Drafts of a schema, bounds and configuration for a table, with blanks for what its owner knows.

What is drafted is made of names, kinds and roles of columns alone. Values, such as bounds and
categories, are left blank, and a file with blanks is refused (`core.config.parse_yaml`).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import parse_yaml
from distributed_privrl.data.profile import Profile, Roles
from distributed_privrl.data.profiled_columns import (
    USABLE,
    ColumnKind,
    DraftedColumn,
    called_as_a_person,
)
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION

_ACTIONS = {"action", "actions", "treatment", "treat", "drug", "dose", "arm", "decision", "offer"}
_REWARDS = {"reward", "rewards", "outcome", "return", "gain", "profit", "score", "recovered"}
_ENDS = {"terminated", "terminal", "done", "died", "dead", "death", "deceased", "churned"}
_REWARD_KINDS: tuple[ColumnKind, ...] = ("number", "whole number", "flag", "date")
_LABELLED: tuple[ColumnKind, ...] = ("category", "flag")
_UNSORTED: tuple[ColumnKind, ...] = ("category", "text", "unclear date")
_NONE = "none"
CORRELATIONS_SHARE = 0.15
"""Of the budget, for how every two columns of a row go together."""
_FEWEST_CORRELATED, _MOST_CORRELATED = 8, 40
"""Columns of whose pairs joint counts leave out many, and not too many are measured.

See docs/design/0020-correlations.md and `correlations.MOST_SUMS`.
"""


@dataclass(frozen=True, kw_only=True)
class AskedRoles:
    """What the owner of a table names; None, or nothing: the draft looks what columns are called.

    Args:
        rows: unit, trajectory and order.
        action: columns, or none.
        reward: a column, or none.
    """

    rows: Roles = field(default_factory=Roles)
    action: tuple[str, ...] = ()
    reward: str | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Roles of a table's columns, and the three files that say so.

    Args:
        profile: of the table.
        source: the table's file name, for comments.
        dataset: id that it is to be imported as.
        unit: column of the unit, ``transition``, or None: nobody knows.
        trajectory: column of the trajectories; None: rows stand for themselves.
        order: column that sorts them.
        observation: columns.
        action: columns; () where none is named, or called so.
        reward: column; None: as with an action.
        terminated: column; None: trajectories are complete, or there are none.
        unnamed: which of action and reward are not there because no column is called so.
        found: which of them nobody named, and a column is called so.
        unit_guessed: the unit was not named, and is not called like a person.
    """

    profile: Profile
    source: str
    dataset: str
    unit: str | None
    trajectory: str | None
    order: str | None
    observation: tuple[str, ...]
    action: tuple[str, ...]
    reward: str | None
    terminated: str | None
    unnamed: tuple[str, ...]
    found: tuple[str, ...]
    unit_guessed: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that have no role."""
        used = {*self.with_values, self.unit, self.trajectory, self.order}
        return tuple(one for one in self.profile.names if one not in used)

    @property
    def rewarded(self) -> tuple[str, ...]:
        """The column of the reward; () where there is none."""
        return () if self.reward is None else (self.reward,)

    @property
    def with_values(self) -> tuple[str, ...]:
        """Columns whose values are counted, in the order of their roles."""
        ends = () if self.terminated is None else (self.terminated,)
        return (*self.observation, *self.action, *self.rewarded, *ends)

    @property
    def method(self) -> str:
        """The method for tables without public rows."""
        return "marginals" if self.trajectory is None else "marginals_j"

    @property
    def levels(self) -> bool:
        """Whether the action is one column of few whole numbers."""
        columns = [self.profile[name] for name in self.action]
        return len(columns) == 1 and columns[0].kind == "whole number" and columns[0].plain

    def files(self, folder: Path) -> dict[str, str]:
        """Return the text of each file, by its name in ``folder``.

        Privacy: made of the columns' names, kinds and roles; no value of a row is in reach.
        """
        return {
            "schema.yaml": _text(self._header("Which column is what"), _schema(self)),
            "bounds.yaml": _text(self._header("Where numbers lie"), _bounds(self)),
            "config.yaml": _text(
                self._header("What the run does"), _config(self, folder / "bounds.yaml")
            ),
        }

    def _header(self, title: str) -> list[str]:
        return [
            f"# {title}. Drafted by `privrl init` from the names and kinds of the columns of",
            f"# {self.source}; no value of a row stands here.",
            "# Fill in the blanks by what you know without a look at the rows, from a code book or",
            "# from common sense: what stands here is public. What init showed of the rows on the",
            "# terminal is for their owner alone: choose nothing by it.",
        ]


def drafted(profile: Profile, asked: AskedRoles, *, source: Path, dataset: str) -> Draft:
    """Return the draft for a table.

    Args:
        profile: of its columns.
        asked: roles that the owner names.
        source: the table's file.
        dataset: id that it is to be imported as.

    Raises:
        ConfigError: a column that is named is not there or cannot have its role, or none is left
            for an observation.
    """
    acted = () if asked.action == (_NONE,) else asked.action
    rewarded = None if asked.reward == _NONE else asked.reward
    named = [*acted, *filter(None, [rewarded])]
    if unknown := [name for name in named if name not in profile.names]:
        raise ConfigError(
            f"{source} has no column {', '.join(unknown)}; it has {', '.join(profile.names)}"
        )
    trajectory, order = profile.trajectory, profile.order
    unit = asked.rows.unit or next(iter(profile.units), TRANSITION if profile.one_each else None)
    taken = {unit, trajectory, order} | {profile.one_each}
    left = [
        one.name
        for one in profile.columns
        if one.kind in USABLE and (one.name not in taken or one.name in named)
    ]
    terminated = _terminated(profile, left, named) if trajectory is not None else None
    left = [name for name in left if name != terminated]
    reward, actions = rewarded, acted
    if asked.reward is None:
        reward = _called_so(profile, left, _REWARDS, _REWARD_KINDS, but=actions)
    if not asked.action:
        found = _called_so(profile, left, _ACTIONS, USABLE, but=(reward or "",))
        actions = () if found is None else (found,)
    observation = tuple(name for name in left if name not in (*actions, reward))
    if not observation:
        raise ConfigError(
            f"{source} needs a column to observe, besides ids, texts, times, actions and rewards;"
            f" it has {', '.join(f'{name} ({profile[name].kind})' for name in left) or 'none'}:"
            f" leave something to observe, as with --action {_NONE} --reward {_NONE}"
        )
    if reward is not None and profile[reward].kind not in _REWARD_KINDS:
        raise ConfigError(
            f"--reward {reward} holds a {profile[reward].kind}: a reward is a number, flag or date"
        )
    if wrong := [name for name in actions if profile[name].kind not in USABLE]:
        raise ConfigError(
            f"--action {wrong[0]} holds {profile[wrong[0]].kind}: an action is a"
            f" {', '.join(USABLE[:-1])} or {USABLE[-1]}"
        )
    if asked.rows.order is not None and profile[asked.rows.order].kind in _UNSORTED:
        raise ConfigError(
            f"--order {order} holds a {profile[asked.rows.order].kind}: rows are sorted by numbers"
            " or ISO 8601 times; name a column of these, or add one that numbers the rows"
        )
    told = {"action": asked.action or actions, "reward": asked.reward or reward}
    return Draft(
        profile=profile,
        source=source.name,
        dataset=dataset,
        unit=unit,
        trajectory=trajectory,
        order=order,
        observation=observation,
        action=actions,
        reward=reward,
        terminated=terminated,
        unnamed=tuple(role for role, how in told.items() if not how),
        found=tuple(
            role
            for role, named, how in (
                ("action", asked.action, actions),
                ("reward", asked.reward, reward),
            )
            if how and not named
        ),
        unit_guessed=asked.rows.unit is None
        and unit not in (None, TRANSITION)
        and not called_as_a_person(str(unit)),
    )


def dataset_id(source: Path) -> str:
    """Return an id for the dataset that a table is imported as.

    Example:
        >>> dataset_id(Path("data/Stays 2024.csv"))
        'stays-2024-v0'
    """
    return f"{re.sub(r'[^a-z0-9]+', '-', source.stem.lower()).strip('-') or 'table'}-v0"


def released_id(dataset: str) -> str:
    """Return an id for what is released of a dataset.

    Example:
        >>> released_id("clinic/stays-v0")
        'clinic/stays-private-v0'
    """
    name, _, version = dataset.rpartition("-v")
    return f"{name}-private-v{version}"


def _called(name: str, words: set[str]) -> bool:
    return bool(set(re.split(r"[^a-z]+", name.lower())) & words)


def _called_so(
    profile: Profile,
    left: Sequence[str],
    words: set[str],
    kinds: Sequence[ColumnKind],
    *,
    but: Sequence[str],
) -> str | None:
    """Return the first column that is called so and changes; None: there is none.

    What stays as it is for a whole trajectory, such as the arm of a trial, is no action: it is
    observed, and lasts.
    """
    may_be = [name for name in left if profile[name].kind in kinds and name not in but]
    called = [name for name in may_be if _called(name, words) and profile[name].changes]
    return next(iter(called), None)


def _terminated(profile: Profile, left: Sequence[str], named: Sequence[str]) -> str | None:
    flags = (name for name in left if profile[name].kind == "flag" and name not in named)
    return next((name for name in flags if _called(name, _ENDS)), None)


def _schema(draft: Draft) -> list[str]:
    profile = draft.profile
    lines = [f"separator: {profile.separator}"] * (profile.separator != "comma")
    lines += [
        "columns:",
        "  # Leave out what nobody needs before the first run: fewer columns keep more relations,",
        "  # and a budget that a run has charged serves this import, no other of the same people.",
        "  # Leave out what others tell, too, such as a sum of them: compute it from the release.",
    ]
    for part, names in (("observation", draft.observation), ("action", draft.action)):
        lines.append(f"  {part}:" if names else f"  {part}: {_NONE}")
        lines += [f"    - {_name(one)}  # {profile[one].kind}" for one in names]
    if draft.reward is None:
        lines.append(f"  reward: {_NONE}")
    else:
        lines.append(f"  reward: {_name(draft.reward)}  # {profile[draft.reward].kind}")
    if draft.unnamed:
        options = " and ".join(f"--{role} COLUMN" for role in draft.unnamed)
        roles = " or the ".join(draft.unnamed)
        lines += [
            f"  # none: no column that changes is called so. If one is the {roles}, draft",
            f"  # anew with {options}; methods that learn policies need both.",
        ]
    if draft.found:
        lines += [
            f"  # {' and '.join(draft.found)}: taken for it because of the name. If it is none,",
            f"  # draft anew with {_none_of(draft.found)}.",
        ]
    if draft.trajectory is not None and draft.reward is not None:
        lines += [
            "  # A step knows what was observed and done before it, not what was rewarded: what a",
            "  # person had before that tells what comes next belongs to the observation.",
        ]
    if draft.trajectory is None:
        lines.append("  next_observation: none  # nothing follows a row")
    else:
        lines.append(f"  trajectory: {_name(draft.trajectory)}")
        if draft.order is not None:
            lines += [
                f"  order: {_name(draft.order)}  # sorts the rows, and a release has their places",
                "  # alone (step): name it under observation, too, if somebody needs its values",
            ]
        if draft.terminated is not None:
            lines.append(f"  terminated: {_name(draft.terminated)}")
        else:
            lines += [
                "  terminated: last  # each trajectory is complete; never: it goes on unseen"
                + (", and" if draft.action or draft.rewarded else ""),
                *(
                    ["  # the action and reward of its last row are left out"]
                    if draft.action or draft.rewarded
                    else []
                ),
            ]
    if draft.unit not in (None, TRANSITION, TRAJECTORY):
        lines.append(f"  unit: {_name(str(draft.unit))}  # what one person contributes")
        if draft.unit_guessed:
            lines += [
                "  # GUESSED: unit, because no column is called like a person. Whom the release",
                "  # protects depends on it: to change it, draft anew with --unit COLUMN.",
            ]
    if draft.left_out:
        told = ", ".join(f"{name} ({_why(profile[name])})" for name in draft.left_out)
        lines.append(f"  # left out: {told}")
    return lines + _kinds(draft) + _spaces(draft) + _layout(draft)


def _none_of(roles: Sequence[str]) -> str:
    return " or ".join(f"--{role} {_NONE}" for role in roles)


def _layout(draft: Draft) -> list[str]:
    """Return how trajectories are stored: packed, unless they may go on after an end."""
    if draft.trajectory is None or draft.terminated is not None:
        return []
    return [
        "layout: packed  # of the dataset and its releases: rows one after the other; episodes:",
        "# an episode of Minari's file each, which many short ones make twenty times slower",
    ]


def _why(column: DraftedColumn) -> str:
    """Return why a column has no role."""
    if column.counted is None:
        return column.kind
    return f"it numbers {column.counted}, and names nobody"


def _kinds(draft: Draft) -> list[str]:
    lines: list[str] = []
    numbers = []
    ends = [] if draft.terminated is None else [draft.terminated]
    for name in draft.with_values:
        column = draft.profile[name]
        alone = name == draft.reward or name in ends
        if column.kind in ("number", "whole number"):
            numbers += [name] * (not alone)
            if column.kind == "whole number" and not (name in draft.action and draft.levels):
                lines.append(f"  {_name(name)}: {{type: number, whole: true}}")
            continue
        lines += [f"  {_name(name)}:", f"    type: {column.kind}"]
        if column.kind == "category":
            lines.append("    values:  # all values that it can have, e.g. [A, B, other]")
        elif column.kind == "flag" and not column.plain:
            lines.append('    values:  # that for no, then that for yes, such as ["no", "yes"]')
        elif column.kind == "date":
            lines.append(f"    unit: {'days' if column.plain else 'minutes'}")
        if not alone:
            other = "indicator" if column.kind == "date" else "own"
            lines.append(f"    # missing: {other}  # keeps rows without a value")
    declared = bool(lines)
    if numbers:
        lines += [
            "  # a number or whole number keeps its gaps with missing: indicator, and is",
            "  # never above another one with at_most: THAT COLUMN; one that is a code, such as",
            "  # that of a plan, is better declared as a category",
        ]
    if draft.trajectory is not None:
        lines += [
            "  # add lasting: true to what a person keeps, such as sex or year of birth, and",
            "  # rising: true to a number that never falls, such as an age or years of experience",
        ]
    return ["kinds:", *lines] if declared else ["# kinds:", *lines]


def _spaces(draft: Draft) -> list[str]:
    lines: list[str] = []
    for part in ("observation", "action"):
        if not getattr(draft, part):
            continue
        kinds = {draft.profile[name].kind for name in getattr(draft, part)}
        if kinds <= set(_LABELLED):
            continue
        if part == "action" and draft.levels:
            lines += [
                "  action:",
                "    type: discrete",
                "    n:      # how many whole numbers it can be",
                "    start:  # the least of them",
            ]
        else:
            lines.append(f"  {part}: {{type: box}}")
    return ["spaces:", *lines] if lines else []


def _bounds(draft: Draft) -> list[str]:
    lines: list[str] = []
    for part in ("observation", "action"):
        columns = [draft.profile[name] for name in getattr(draft, part)]
        numbers = [one for one in columns if one.kind not in _LABELLED]
        if not numbers or (part == "action" and draft.levels):
            continue
        lines.append(f"{part}:")
        for side, most in (("low", "least"), ("high", "greatest")):
            lines.append(f"  {side}:  # the {most} value that it can have")
            lines += [f"    -  # {one.name}{_unit_of(one)}" for one in numbers]
        steps = ", ".join("0" if one.kind == "number" else "1" for one in numbers)
        lines.append(f"  step: [{steps}]  # 1: whole numbers; 0.1: one decimal; 0: any")
    if draft.reward is None:
        return lines
    reward = draft.profile[draft.reward]
    lines.append(f"reward:  # {draft.reward}{_unit_of(reward)}")
    if reward.kind == "flag":
        lines += ["  low: 0", "  high: 1"]
    else:
        lines += ["  low:", "  high:"]
    lines.append(f"  step: {0 if reward.kind == 'number' else 1}")
    return lines


def _unit_of(column: DraftedColumn) -> str:
    if column.kind != "date":
        return ""
    return f", in {'days' if column.plain else 'minutes'} since its origin"


def _config(draft: Draft, bounds: Path) -> list[str]:
    unit = _name(draft.unit) if draft.unit is not None else ""
    whose = "  # what one person contributes: a row (transition), or the column of the person"
    lines = [
        f"method: {draft.method}",
        "data:",
        f"  sensitive: {draft.dataset}",
        f"  unit: {unit}{whose}".replace(":   #", ":  #"),
        "  units:  # how many there are, if that is public; {epsilon: 0.1} counts them with noise",
        f"  bounds: {_name(str(bounds))}",
        "  # If nobody can name them without a look at the rows, give ranges there that are wide",
        f"  # enough for anyone to name, and: bounds: {{epsilon: 0.5, search: {bounds}}}",
    ]
    if draft.unit != TRANSITION:
        lines += [
            "  max_length:  # rows of one of them that count at most, if that is public;",
            "  # null: as many as there are",
        ]
    lines += [
        "privacy:",
        "  epsilon: 1",
        "  delta:  # well below 1/units",
    ]
    if draft.unit != TRANSITION:
        lines += [
            "model:",
            "  rows_per_unit:  # about how many rows one of them usually has (not the most);",
            "  # null: a small default",
        ]
        if draft.trajectory is not None and draft.trajectory == draft.unit:
            lines.append("  trajectories_per_unit: 1  # all rows of one of them are one trajectory")
        lines += _levels(draft)
    lines += ["training:", *_correlated(draft)]
    if draft.trajectory is not None:
        lines += [
            "  sampling:",
            "    max_length:  # steps of a synthetic trajectory at most",
        ]
    lines += _asked(draft)
    counted = "rows" if draft.trajectory is None else "trajectories"
    return [
        *lines,
        "output:",
        f"  dataset: {released_id(draft.dataset)}",
        f"  size:  # synthetic {counted}, as many as you like",
        "runtime:",
        "  executor: local  # one process here; ray: processes of Ray, here or on a cluster",
    ]


def _levels(draft: Draft) -> list[str]:
    """Return which columns may have a level so far, for the owner to choose among."""
    names = [_name(one) for one in draft.observation if one != draft.order]
    if draft.trajectory is None or not names:
        return []
    return [
        "  # Each step knows the one before. Of what people keep a level of their own in, such as",
        "  # a blood pressure or a trade, it can know the level, too, for a column each. Take away",
        "  # the #, what lasts, and the names of all that has none:",
        f"  # memory: [{', '.join(names)}]",
    ]


def _correlated(draft: Draft) -> list[str]:
    """Return whether it is measured how every two columns go together."""
    count = len(draft.with_values)
    if count < _FEWEST_CORRELATED:
        return [
            f"  correlations_share: 0  # of the budget; {CORRELATIONS_SHARE} measures how every two"
            " columns of",
            "  # a row go together, by one number a pair; of so few, joint counts tell enough",
        ]
    share = CORRELATIONS_SHARE if count <= _MOST_CORRELATED else 0
    return [
        f"  correlations_share: {share}  # of the budget; it measures how every two columns of a",
        "  # row go together, by one number a pair, so that weak relations are kept, too",
    ]


def _asked(draft: Draft) -> list[str]:
    """Return how columns are named that are to be counted together, for the owner to fill in."""
    others = "" if draft.trajectory is None else "  # next A is what A becomes, end whether"
    more = [] if draft.trajectory is None else ["  # a row is the last"]
    return [
        "  # If the release is for some relations, name their columns, and they are counted:",
        f"  # together: [[A, B]]{others}",
        *more,
    ]


def _name(text: str) -> str:
    """Return a text as YAML, in quotes where it would mean something else."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*( [\w./-]+)*", text) is not None
    if plain and parse_yaml(text, source="a name") == text:
        return text
    return json.dumps(text, ensure_ascii=False)


def _text(*parts: Sequence[str]) -> str:
    return "\n".join(line for part in parts for line in part) + "\n"
