"""Private synthetic rows and trajectories from noisy marginals."""
