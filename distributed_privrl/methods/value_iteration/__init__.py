"""Private value iteration: DP-APVI for tables, DP-VAPVI for linear MDPs (paper 002)."""
