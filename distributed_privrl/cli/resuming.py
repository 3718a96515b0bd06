"""``--resume`` and ``--resume=auto``, as every verb that can be killed has them."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

AUTO = "--resume=auto"
_HIDDEN = "--resume-or-begin"

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="go on with what is in --out, and draw no noise twice; --resume=auto: go on, or begin"
        " where nothing is there yet",
    ),
]
ResumeOrBegin = Annotated[bool, typer.Option(_HIDDEN, hidden=True)]


class ResumingCommand(TyperCommand):
    """A command whose ``--resume`` takes ``auto``, which an option without a value cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with ``--resume=auto`` as an option of its own."""
        end = args.index("--") if "--" in args else len(args)
        before = [_HIDDEN if argument == AUTO else argument for argument in args[:end]]
        return super().parse_args(ctx, [*before, *args[end:]])
