"""Benchmarks: ours, the plain alternative and the bound, interleaved in one run.

``python -m benchmarks.dp_sgd`` (``trajectory_dp``, ``local_update``, ``model_rollouts``,
``sampling``, ``accounting``, ``ray_round``, ``offline_trainers``, ``value_iteration``,
``utility_value_iteration``, ``utility_maze2d``, ``utility_mujoco``, ``utility_primorl``,
``utility_expert``, ``verdicts``) prints a table and, last, a line of JSON with the ratios.
"""

from distributed_privrl.core.threads import cap_threads

cap_threads()
