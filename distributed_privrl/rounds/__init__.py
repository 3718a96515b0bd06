"""Private rounds: local updates, per-unit clipping, and the server that adds noise once."""
