"""forebay.db: opening it, bringing its schema up to date, and the one thread that may touch it.

Everything durable but money lives in this file, through SQLAlchemy Core on Python's own sqlite3,
with `journal_mode=TRUNCATE, synchronous=FULL`: a commit that was answered survives a power cut, and
there is no WAL (the SQLite that comes with Python may be older than 3.51.3, where resetting the WAL
could corrupt the file).

- One connection, one thread, one transaction at a time: nothing blocks the event loop, and the
  order of `run` calls is the order in which they take effect.
- What waits for the thread is committed together, each in a savepoint of its own: a commit costs two
  writes to the disk, however much is in it. If such a group fails, each of it is tried alone.
- The schema is Alembic's: `versions/` has one file per step, applied all or none in one
  transaction. There is no `env.py` and no ini file: `open_database` is the only way in, and it
  touches neither the logging configuration nor Alembic's global `op`.
- A damaged file and a schema of the future are refused before anything is written.

Not here: what the tables mean (each room's `sql.py`), who may open the folder (the lock is
wiring's), money (`ledger.db`, through another library: never open one file through both).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
# Each of a group waits for all of it.
MOST_TOGETHER = 64


class DatabaseRefused(Exception):
    """forebay.db cannot be used as it is; the message says why and what to do."""


class _Asked:
    """A function that is to run, and who waits for what becomes of it."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self._loop.create_future()

    def tell(self, done: Done) -> None:
        """From the database's thread, when it is committed."""
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._hear, done)

    def _hear(self, done: Done) -> None:
        if self.answer.done():  # its caller was cancelled
            return
        if done.fault is None:
            self.answer.set_result(done.value)
        else:
            self.answer.set_exception(done.fault)


class Done(NamedTuple):
    """What a function answered, or what it raised."""

    value: Any = None
    fault: Exception | None = None


class Database:
    """The open file. `run` from any number of tasks of one event loop at a time; `close` once."""

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread
        self._waiting: deque[_Asked] = deque()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run this function on the database's thread, all or nothing.

        It is committed when this returns, and undone when the function raises; what it raises is
        raised here, but a failure of the store becomes StoreUnavailable. It may be run twice: what the
        first time did is undone then. A caller that is cancelled does not stop it: it commits all
        the same.
        """
        asked = _Asked(work)
        self._waiting.append(asked)
        try:
            self._thread.submit(self._commit_waiting)
        except RuntimeError as error:
            self._waiting.remove(asked)
            raise StoreUnavailable("The database is closed.") from error
        answer: T = await asked.answer
        return answer

    def close(self) -> None:
        """Finish what runs, then let go of the file. Idempotent."""
        try:
            self._thread.submit(self._engine.dispose)
        except RuntimeError:  # closed before
            return
        self._thread.shutdown(wait=True)

    def _commit_waiting(self) -> None:
        """Submitted once for each that waits: the first of them finds the others here, too."""
        group: list[_Asked] = []
        while self._waiting and len(group) < MOST_TOGETHER:
            group.append(self._waiting.popleft())
        done = self._together(group) if len(group) > 1 else [self._alone(each) for each in group]
        for asked, what in zip(group, done, strict=True):
            asked.tell(what)

    def _together(self, group: list[_Asked]) -> list[Done]:
        try:
            with self._engine.begin() as connection:
                return [_in_savepoint(asked, connection) for asked in group]
        except DBAPIError:  # whose fault it is, each finds out alone
            return [self._alone(asked) for asked in group]

    def _alone(self, asked: _Asked) -> Done:
        try:
            with _translating(), self._engine.begin() as connection:
                return Done(asked.work(connection))
        except Exception as fault:
            return Done(fault=fault)


def _in_savepoint(asked: _Asked, connection: Connection) -> Done:
    """Raises DBAPIError if not even what it did can be undone, or the store failed."""
    try:
        with connection.begin_nested():
            return Done(asked.work(connection))
    except IntegrityError as fault:
        return Done(fault=fault)
    except DBAPIError:
        raise
    except Exception as fault:
        return Done(fault=fault)


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
        hide_parameters=True,  # of what people said, in errors that are logged
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
