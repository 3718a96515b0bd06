"""Private value iteration: DP-APVI for tables, DP-VAPVI for linear MDPs (DP-VAPVI)."""
