"""How utility is judged: starts, judges, the ladder, statistics, registration.

See docs/design/0009-utility-protocol.md.
"""
