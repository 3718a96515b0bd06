"""Public tables of planes, people and simulated patients, imported as users import their own.

`benchmarks.tables.catalogue.TABLES` has them all. ``fleet.table()`` is a data frame of one, a row a
decision, and ``fleet.import_into(store, dataset)`` stores it.
"""
