"""One program: a configuration and an executor in, a run directory out."""
