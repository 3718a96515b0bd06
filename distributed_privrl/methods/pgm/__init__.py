"""Private-PGM on marginals that nobody chooses by the rows."""
