"""The command line ``privrl``: it starts without Ray and torch, verbs import what they need."""


def main() -> None:
    """Run the command line; the console entry point ``privrl``."""
    from distributed_privrl.cli.app import app

    app(prog_name="privrl")
