"""Sweeps: many runs of one configuration, and the choice among them, paid for or public."""
