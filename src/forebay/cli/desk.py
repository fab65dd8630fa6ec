"""How a command gets at settings and data: it asks the server that owns them, or opens them itself.

    command ──▶ DATA_DIR/control.sock ──▶ the running server
       └─ nobody answers ──▶ take the directory's lock, call the same functions here

Not here: what the verbs do (`forebay.pipeline.administration`).
"""

from __future__ import annotations

import shlex
import shutil
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.cli.failure import Failure

if TYPE_CHECKING:
    from forebay.config import Settings

T = TypeVar("T")

LONG_SECONDS = 6 * 3_600.0  # an audit reads every row that there is
SOCKET, CLI_KEY, LOCK, LEDGER = "control.sock", "cli.key", "lock", "ledger.db"


def load(config: Path | None, **flags: Any) -> Settings:
    """The settings, with the log going to standard error. Raises ConfigError."""
    from forebay.config import load_from_process
    from forebay.observe.log import configure

    settings = load_from_process(flags, config)
    # A short command that works has nothing to log; `up` configures the log as the settings say.
    quiet = settings.log_level if settings.log_level in ("debug", "error") else "warning"
    configure(quiet, as_json=settings.log_format == "json")
    return settings


def run(settings: Settings, work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end; with the log level `debug` a failure shows where it came from."""
    import asyncio

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise Failure("interrupted") from None
    except Exception:
        if settings.log_level == "debug":
            traceback.print_exc()
        raise


async def ask(settings: Settings, verb: str, args: Mapping[str, Any] | None = None) -> Any:
    """What the verb answers, from whoever may open the data now."""
    from forebay.gateway.control import ControlFailed, call, verbs

    try:
        return await call(settings.data_dir / SOCKET, verb, args)
    except ControlFailed as unanswered:
        reason = str(unanswered)
    if verb != "keys.create" and not (settings.data_dir / LEDGER).exists():
        raise Failure(_no_data(settings))
    from forebay.wiring import DirectoryBusy, open_desk

    try:
        async with open_desk(settings) as administration:
            return await verbs(administration)[verb](dict(args or {}))
    except DirectoryBusy as busy:
        raise _silent(busy, reason) from None


Asking = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[Asking]:
    """Several questions, or long ones, of whoever may open the data now: `await ask(verb, **args)`.

    Where no server runs, the data is opened once for all of them.
    """
    from forebay.gateway.control import ControlFailed, call, verbs
    from forebay.wiring import DirectoryBusy, open_desk

    socket = settings.data_dir / SOCKET

    async def ask(verb: str, **args: Any) -> Any:
        return await call(socket, verb, args, timeout_seconds=LONG_SECONDS)

    try:
        await call(socket, "status")
    except ControlFailed as unanswered:
        reason = str(unanswered)
    else:
        yield ask
        return
    if not (settings.data_dir / LEDGER).exists():
        raise Failure(_no_data(settings))
    async with AsyncExitStack() as stack:
        try:
            administration = await stack.enter_async_context(open_desk(settings))
        except DirectoryBusy as busy:
            raise _silent(busy, reason) from None
        table = verbs(administration)

        async def ask_here(verb: str, **args: Any) -> Any:
            return await table[verb](args)

        yield ask_here


def _silent(busy: Exception, reason: str) -> Failure:
    return Failure(
        f"{str(busy).partition('. ')[0]}, and does not answer (yet): {reason} "
        "If it is starting, try again in a moment."
    )


def _no_data(settings: Settings) -> str:
    return (
        f"There is no data in {settings.data_dir}: no server was started with it. "
        f"{elsewhere(settings)}"
    )


def elsewhere(settings: Settings) -> str:
    """What to say to somebody who looks in the wrong place; empty where there is data."""
    if data_here(settings) is not None:
        return "Here `make up` keeps it in ./data: use --data-dir data."
    if (settings.data_dir / LEDGER).exists():
        return ""
    return "If yours is in another place, name it with --data-dir."


def data_here(settings: Settings) -> Path | None:
    """./data, if it has data and nobody has asked for it, nor for another place with data."""
    here, asked = Path("data").absolute(), settings.data_dir
    if not (here / LEDGER).exists() or here.resolve() == asked.resolve():
        return None
    chosen = "data_dir" in settings.origins and (asked / LEDGER).exists()
    return None if chosen else here


def hint(settings: Settings, *arguments: str) -> str:
    """A command to type that reaches the same data."""
    program = sys.argv[0]
    if shutil.which("forebay") == program or Path(program).name != "forebay":
        program = "forebay"
    place = ["--data-dir", str(settings.data_dir)] if "data_dir" in settings.origins else []
    return shlex.join([program, *arguments, *place])
