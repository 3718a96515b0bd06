"""Environments are found by programs that have not imported the package."""

import subprocess
import sys

CODE = """
import sys
import gymnasium

assert not any(name.startswith("distributed_privrl") for name in sys.modules)
made = gymnasium.make("distributed_privrl.environments:privrl/Gridworld-v0")
assert gymnasium.spec("privrl/Gridworld-v0").max_episode_steps == made.spec.max_episode_steps
assert "privrl/Maze2D-umaze-v0" in gymnasium.registry
assert not {"torch", "ray", "mujoco"} & set(sys.modules)
"""


def test_a_fresh_process_makes_an_environment_by_its_module() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
