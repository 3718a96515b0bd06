"""Public tables of people, planes and simulated patients, imported as a user imports their own.

Each module has ``table()`` (a data frame, a row a decision) and ``import_into(store, dataset)``.
"""
