"""What a report calls the parts of rows: as their table does, or as a simulator has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from distributed_privrl.data.named_rows import Rows

_NAMED = 4
"""Columns that are named one by one; of more, their number is told."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Words for the parts of a row.

    Args:
        state: what is known before the action.
        action: what is done; empty where nothing is.
        reward: what it earns; empty where nothing is earned.
        after: what follows.
        end: whether nothing follows.
    """

    state: str = "state"
    action: str = "action"
    reward: str = "reward"
    after: str = "next state"
    end: str = "end"

    @property
    def given(self) -> str:
        """What a reward, and what follows, is learned from."""
        return " and ".join(filter(None, (self.state, self.action)))

    def seen(self, group: str) -> str:
        """Return what a classifier sees of one of `two_sample.groups_of`.

        Example:
            >>> Terms().seen("s, a, r")
            'state, action and reward'
        """
        words = {"s": self.state, "a": self.action, "r": self.reward, "s'": self.after}
        *others, last = filter(None, (words.get(one, self.end) for one in group.split(", ")))
        return f"{', '.join(others)} and {last}" if others else last


def terms_of(rows: Rows) -> Terms:
    """Return the words for rows: names of columns where they came from somebody's table."""
    if not rows.table:
        return Terms()
    return Terms(
        state=_columns(rows.state, "observation"),
        action=_columns(rows.action, "action"),
        reward=rows.reward or "",
        after="the next row's observation",
        end="the trajectory's end",
    )


def _columns(names: Sequence[str], part: str) -> str:
    """Return the names of a part's columns, or how many they are."""
    if len(names) > _NAMED:
        return f"the {len(names)} columns of the {part}"
    return ", ".join(names)
