"""forebay.db, the store of everything durable but money: see `database.py`."""

from forebay.migrations.database import Database, DatabaseRefused, open_database, upgrade

__all__ = ["Database", "DatabaseRefused", "open_database", "upgrade"]
