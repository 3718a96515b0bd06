"""PrivSyn: rows that are adjusted, step by step, to noisy two-way marginals."""
