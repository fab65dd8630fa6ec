"""One file per step of forebay.db's schema, in the order of their numbers.

A step is never edited once released, and imports no room: it must mean the same in ten years.
`upgrade` gets Alembic's operations as its argument. There are no downgrades: a backup is one.
"""
