"""What agents earn on PrivORL's synthetic mazes, as a share of what real data give them.

``--method privorl_n`` has transitions, ``--method privorl_j`` whole trajectories of many short
episodes, beside the U-Net's and transitions of the same episodes.

The mazes of the table are sensitive one at a time, the other two are public; settings were chosen
on D4RL's held-out ``eval-`` mazes alone (``--mazes eval-umaze eval-medium eval-large`` repeats the
choice). The command goes on where it stopped.

Reference: PrivORL, section IX-A to C, E, F and appendices I-B, I-C.
"""

from collections.abc import Sequence

from benchmarks import utility_table
from benchmarks.utility_scales import MAZE_TABLES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    utility_table.run("benchmarks.utility_maze2d", MAZE_TABLES, arguments)


if __name__ == "__main__":
    main()
