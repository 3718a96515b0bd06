"""The command line ``privrl``: it starts without Ray and torch, verbs import what they need."""

import signal
import sys


def main() -> None:
    """Run the command line; the console entry point ``privrl``.

    Ctrl-C shows no traceback, wherever it comes: while modules are imported, after the last line,
    or while Ray ends.
    """
    try:
        from distributed_privrl.cli.app import app

        app(prog_name="privrl")
    except KeyboardInterrupt:
        from distributed_privrl.cli.failures import INTERRUPTED_LINE
        from distributed_privrl.core.errors import INTERRUPTED_EXIT_CODE

        sys.stderr.write(f"{INTERRUPTED_LINE}\n")
        sys.exit(INTERRUPTED_EXIT_CODE)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
