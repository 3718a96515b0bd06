"""Marginal models of tables: public cells, noisy counts, private selection, estimation, draws."""
