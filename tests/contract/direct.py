"""A database in memory, on this thread: for tests that ask thousands of things of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

T = TypeVar("T")


class Direct:
    """With these tables."""

    def __init__(self, tables: sa.MetaData) -> None:
        self.engine = sa.create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"isolation_level": None}
        )
        sa.event.listen(self.engine, "begin", lambda it: it.exec_driver_sql("BEGIN"))
        with self.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
            connection.exec_driver_sql("BEGIN")
            tables.create_all(connection)
            connection.commit()

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        with self.engine.begin() as connection:
            return work(connection)
