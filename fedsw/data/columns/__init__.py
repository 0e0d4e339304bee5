"""Declarations of the columns that clients' tables have: kinds, bounds, categories, groups, target, unit.

`declaration` has the whole of a table (`Columns`), `declared_kinds` its columns, `kind` the type of a kind, and
`registered` all kinds by name; each kind is in a file of its own.
"""
