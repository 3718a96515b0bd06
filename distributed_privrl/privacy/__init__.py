"""What makes every epsilon true: units, events, accounting, noise, ledger, certificate."""
