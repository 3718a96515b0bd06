"""What a policy would earn where others acted: estimates from logged episodes, without a simulator.

`estimators` are functions of arrays, `models` fit what they need, `judge` resamples units. No
library was taken: d3rlpy's fitted Q evaluation wants d3rlpy's own agents, and SCOPE-RL pins Gym and
an old d3rlpy.

Privacy: everything here is computed from real rows without noise, for ``private/`` alone.
"""
