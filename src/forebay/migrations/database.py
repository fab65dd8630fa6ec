"""forebay.db: opening it, bringing its schema up to date, and the one thread that may touch it.

Everything durable but money lives in this file, through SQLAlchemy Core on Python's own sqlite3,
with `journal_mode=TRUNCATE, synchronous=FULL`: a commit that was answered survives a power cut, and
there is no WAL (the SQLite that comes with Python may be older than 3.51.3, where resetting the WAL
could corrupt the file).

- One connection, one thread, one transaction at a time: nothing blocks the event loop, and the
  order of `run` calls is the order of transactions.
- The schema is Alembic's: `versions/` has one file per step, applied all or none in one
  transaction. There is no `env.py` and no ini file: `open_database` is the only way in, and it
  touches neither the logging configuration nor Alembic's global `op`.
- A damaged file and a schema of the future are refused before anything is written.

Not here: what the tables mean (each room's `sql.py`), who may open the folder (the lock is
wiring's), money (`ledger.db`, through another library: never open one file through both).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import StaticPool

from forebay.core.errors import StoreUnavailable

T = TypeVar("T")

# Only a backup tool can hold the file's lock beside us, and only for moments.
LOCK_WAIT_SECONDS = 5.0


class DatabaseRefused(Exception):
    """forebay.db cannot be used as it is; the message says why and what to do."""


class Database:
    """The open file. `run` from any number of tasks of one event loop at a time; `close` once."""

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run this function on the database's thread, in a transaction of its own.

        It commits when the function returns and rolls back when it raises; what it raises is
        raised here, but a failure of the store becomes StoreUnavailable. A caller that is cancelled
        while the function runs does not stop it: it commits all the same.
        """
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._thread, self._transaction, work)
        except RuntimeError as error:
            raise StoreUnavailable("The database is closed.") from error
        return await future

    def close(self) -> None:
        """Finish what runs, then let go of the file. Idempotent."""
        try:
            self._thread.submit(self._engine.dispose)
        except RuntimeError:  # closed before
            return
        self._thread.shutdown(wait=True)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        with _translating(), self._engine.begin() as connection:
            return work(connection)


def open_database(path: Path) -> Database:
    """Open or create this file, check it, bring its schema up to date; returns when it can serve.

    Raises DatabaseRefused. Blocks: for the start of a process, not for its life.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forebay.db")
    try:
        engine = thread.submit(_open, path).result()
    except BaseException:
        thread.shutdown(wait=True)
        raise
    return Database(engine, thread)


def upgrade(connection: Connection) -> None:
    """Apply the steps that this database lacks, within the transaction that is open on it.

    Raises DatabaseRefused, having changed nothing, if the schema is not one of ours.
    """
    script = ScriptDirectory(str(Path(__file__).parent))
    context = MigrationContext.configure(
        connection, opts={"fn": lambda current, _: script._upgrade_revs("head", current)}
    )
    known = {step.revision for step in script.walk_revisions()}
    if unknown := sorted(set(context.get_current_heads()) - known):
        raise DatabaseRefused(
            f"a newer Forebay has written it (schema {unknown[0]}; this version knows schemas up "
            f"to {script.get_current_head()}). Install that version again, or restore the backup "
            "made before it."
        )
    context.run_migrations(op=Operations(context))


def _open(path: Path) -> Engine:
    try:
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise DatabaseRefused(f"Cannot open {path}: {error.strerror}.") from error
    engine = _engine(path)
    try:
        with engine.begin() as connection:
            problems = list(connection.exec_driver_sql("PRAGMA quick_check(3)").scalars())
            if problems != ["ok"]:
                raise _damaged(path, "; ".join(str(problem) for problem in problems))
            upgrade(connection)
    except DatabaseRefused as refusal:
        engine.dispose()
        raise DatabaseRefused(f"Cannot use {path}: {refusal}") from refusal.__cause__
    except DBAPIError as error:
        engine.dispose()
        raise DatabaseRefused(f"Cannot use {path}: {_reason(path, error)}") from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def _engine(path: Path) -> Engine:
    """SQLite in its autocommit mode and BEGIN sent by us: sqlite3's own idea of when a transaction
    begins leaves schema changes outside of it."""
    engine = create_engine(
        URL.create("sqlite", database=str(path.absolute())),
        poolclass=StaticPool,
        connect_args={"isolation_level": None, "timeout": LOCK_WAIT_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def prepare(raw: Any, _: Any) -> None:
        for pragma in ("journal_mode = TRUNCATE", "synchronous = FULL", "foreign_keys = ON"):
            raw.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _damaged(path: Path, what: str) -> DatabaseRefused:
    return DatabaseRefused(
        f"it is damaged ({what}). Keep a copy of it and restore {path.name} from a backup. To go "
        "on without one, move it away: organisations and API keys must then be made anew; usage "
        "and balances are in another file and not affected."
    )


def _reason(path: Path, error: DBAPIError) -> str:
    text = str(error.orig)
    if "not a database" in text or "malformed" in text:
        return str(_damaged(path, text))
    return f"{text}."


@contextmanager
def _translating() -> Iterator[None]:
    """A broken rule of the schema stays what it is: it is the room's to understand."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise StoreUnavailable(f"The database failed: {error.orig}") from error
