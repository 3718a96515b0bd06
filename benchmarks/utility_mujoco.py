"""What agents earn on PrivORL's synthetic rows of 41 numbers: HalfCheetah.

The sensitive rows are the replay of a policy that still learns (``medium-replay``), the public ones
those of two finished policies (``medium-expert``), recorded here in a fiftieth of the usual steps;
no setting was chosen on either. The command goes on where it stopped.

Reference: PrivORL, section IX-A to C and appendix I-B.
"""

from collections.abc import Sequence

from benchmarks import utility_table
from benchmarks.utility_scales import MUJOCO_TABLES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    utility_table.run("benchmarks.utility_mujoco", MUJOCO_TABLES, arguments)


if __name__ == "__main__":
    main()
