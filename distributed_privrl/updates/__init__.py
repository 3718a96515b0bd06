"""The mathematics of a round: local updates, clipping, exact sums, their kernels."""
