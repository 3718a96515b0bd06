"""``python -m distributed_privrl.cli``: for an interpreter whose ``privrl`` is not on the path."""

from distributed_privrl.cli import main

main()
