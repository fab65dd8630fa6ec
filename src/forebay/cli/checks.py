"""The checks of `forebay doctor`: each looks, changes nothing, and answers findings.

A store is looked into only while nobody owns the directory, read-only, under its lock.

Not here: how findings are shown (`doctor.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import platform
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import apsw

from forebay import __version__
from forebay.catalog.download import WeightsError
from forebay.catalog.fetch import find, verify
from forebay.cli import desk
from forebay.cli.screen import counted
from forebay.config import Settings
from forebay.core.errors import StoreUnavailable
from forebay.gateway.control import ControlFailed, call
from forebay.gateway.serve import PortUnavailable, bind
from forebay.ledger.sqlite import check_library
from forebay.wiring import fetch_settings

Status = dict[str, Any] | None

DATABASE = "forebay.db"
FREE_BYTES_WRONG, FREE_BYTES_WARNING = 100 << 20, 1 << 30
PACKAGES = (
    "openvino-genai", "openvino", "tokenizers", "uvicorn", "starlette", "uvloop", "sqlalchemy",
    "pip",
)  # fmt: skip
PRIVATE = ("pepper", desk.CLI_KEY, desk.SOCKET, desk.LEDGER, DATABASE)
# A listener on all addresses is asked at this one.
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
ASK_SECONDS, MAX_ANSWER_BYTES = 2.0, 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    level: Literal["ok", "warning", "wrong"]
    text: str
    remedy: str = ""


async def server_status(directory: Path) -> Status:
    """What the server that owns this directory says of itself; None if none answers."""
    try:
        answer: Status = await call(directory / desk.SOCKET, "status", timeout_seconds=5.0)
    except ControlFailed:
        return None
    return answer


def versions() -> Iterator[Finding]:
    """Forebay, Python and what they stand on."""
    system = f"{platform.system()} {platform.machine()}"
    python = platform.python_version()
    yield Finding("versions", "ok", f"Forebay {__version__}, Python {python}, {system}")
    try:
        yield Finding("versions", "ok", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    except PackageNotFoundError as fault:
        yield Finding("versions", "wrong", f"{fault.name} is not installed", "make install")
    ledger, other = apsw.sqlite_lib_version(), sqlite3.sqlite_version
    text = f"SQLite {ledger} for the ledger (apsw {apsw.apsw_version()}), {other} for the rest"
    try:
        check_library(ledger)
        yield Finding("versions", "ok", text)
    except StoreUnavailable as fault:
        yield Finding("versions", "wrong", text, str(fault))


def server(settings: Settings, status: Status) -> Iterator[Finding]:
    """The server that owns the data directory, and its engines."""
    if status is None:
        yield Finding("server", "ok", f"none runs on {settings.data_dir}")
        return
    addresses = " and ".join(status["urls"])
    yield Finding(
        "server",
        "ok",
        f"process {status['pid']} of version {status['version']} on {addresses}, "
        f"{counted(status['open_calls'], 'call')} open",
    )
    if status["version"] != __version__:
        yield Finding(
            "server", "warning", f"it is not this version ({__version__})", "restart the server"
        )
    for engine in status["engines"]:
        text = (
            f"{engine['model']} is {engine['state']} (process {engine['pid']}, "
            f"{counted(engine['restarts'], 'restart')}, {engine['running']} running, "
            f"{status['waiting'][engine['model']]} waiting)"
        )
        if engine["state"] not in ("ready", "renewing"):
            yield Finding("engine", "wrong", text, "see `engine_died` in the server's log")
        elif engine["restarts"]:
            yield Finding("engine", "warning", text, "see `engine_died` in the server's log")
        else:
            yield Finding("engine", "ok", text)


def neighbour(settings: Settings, status: Status, other: Status) -> Iterator[Finding]:
    """Data, and perhaps a server, in ./data, when that is not where somebody told us to look."""
    if status is not None or desk.data_here(settings) is None:
        return
    text = "there is data in ./data, which is not what is examined here"
    if other is not None:
        text = f"process {other['pid']} serves ./data, which is not what is examined here"
    yield Finding("server", "warning", text, "add --data-dir data")


async def weights(settings: Settings) -> list[Finding]:
    """Every model's weights, hashed anew."""
    findings = []
    for model in settings.models:
        if model.source is None:
            findings.append(Finding("weights", "ok", f"{model.id} needs none"))
            continue
        where = fetch_settings(settings)
        if find(model.source, where) is None:
            findings.append(
                Finding(
                    "weights",
                    "warning",
                    f"{model.id}: not here yet, or changed since they were fetched",
                    desk.hint(settings, "models", "pull", model.id),
                )
            )
            continue
        try:
            digest = await asyncio.to_thread(verify, model.source, where)
            findings.append(Finding("weights", "ok", f"{model.id}: SHA-256 {digest}"))
        except WeightsError as fault:
            findings.append(Finding("weights", "wrong", f"{model.id}: {fault}"))
    return findings


def stores(settings: Settings, status: Status) -> Iterator[Finding]:
    """Both databases, when nobody has them open; else who has."""
    directory = settings.data_dir
    if status is not None:
        yield Finding("stores", "ok", f"{directory} is owned by process {status['pid']}")
        return
    if not (directory / desk.LOCK).exists():
        yield Finding("stores", "ok", f"{directory} is empty; the first start fills it")
        return
    with _locked(directory / desk.LOCK) as owner:
        if owner is not None:
            yield Finding(
                "stores",
                "warning",
                f"{directory} is owned by process {owner}, which does not answer",
                "if it is starting, wait; else see its log, or stop it",
            )
            return
        for name, check in ((desk.LEDGER, _check_ledger), (DATABASE, _check_database)):
            yield _checked(directory / name, check)


def ports(settings: Settings, status: Status, other: Status = None) -> Iterator[Finding]:
    """Whether a server could start now; a port that another Forebay has is nothing broken."""
    if status is not None:
        return
    for name in ("", "admin_"):
        host, port = getattr(settings, f"{name}host"), getattr(settings, f"{name}port")
        flag = f"--{name}port".replace("_", "-")
        try:
            bind(host, port, flag=flag).close()
            yield Finding("ports", "ok", f"{host}:{port or 'any'} is free")
        except PortUnavailable as fault:
            if not _is_forebay(host, port):
                yield Finding("ports", "wrong", str(fault))
                continue
            near = other is not None and any(url.endswith(f":{port}") for url in other["urls"])
            yield Finding(
                "ports",
                "warning",
                f"{host}:{port} is taken by the Forebay of {'./data' if near else 'other data'}",
                f"{'add --data-dir data' if near else 'name its data with --data-dir'}, "
                f"or choose another with {flag}",
            )


def _is_forebay(host: str, port: int) -> bool:
    """Whether a Forebay answers there."""
    connection = HTTPConnection(LOCAL.get(host, host), port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/livez")
        answer = json.loads(connection.getresponse().read(MAX_ANSWER_BYTES))
        return isinstance(answer, dict) and answer.get("status") == "alive"
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()


def disk(settings: Settings) -> Iterator[Finding]:
    """Room for data and for weights."""
    for what, directory in (("data", settings.data_dir), ("weights", settings.cache_dir)):
        existing = next(each for each in (directory, *directory.parents) if each.exists())
        free = shutil.disk_usage(existing).free
        text = f"{free / 1e9:.1f} GB free for {what} in {directory}"
        if free < FREE_BYTES_WRONG:
            yield Finding("disk", "wrong", text, "free some space")
        elif free < FREE_BYTES_WARNING:
            yield Finding("disk", "warning", text, "free some space")
        else:
            yield Finding("disk", "ok", text)


def permissions(settings: Settings) -> Iterator[Finding]:
    """Nobody else may read keys and books, nor speak to the control socket."""
    directory = settings.data_dir
    if not directory.exists():
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield Finding("permissions", "wrong", f"{directory} cannot be written", "chown or chmod it")
    if _mode(directory) & 0o077:
        text = f"{directory}, with bills and digests of keys, is open to others"
        yield Finding("permissions", "warning", text, f"chmod 700 {directory}")
    found = [directory / name for name in PRIVATE if (directory / name).exists()]
    wrong = [path for path in found if _mode(path) & 0o077]
    for path in wrong:
        yield Finding("permissions", "wrong", f"{path} is open to others", f"chmod 600 {path}")
    if not wrong:
        yield Finding("permissions", "ok", f"{', '.join(p.name for p in found) or 'nothing yet'}")


def choices(settings: Settings) -> Iterator[Finding]:
    """Settings that are allowed, and that somebody should have thought about."""
    for model in settings.models:
        if model.prefix_cache == "shared":
            yield Finding(
                "settings",
                "warning",
                f"{model.id}: prefix_cache is shared, so response times can tell one organisation "
                "what another has sent",
                "set it to auto, unless all organisations trust each other",
            )
    risks = {
        "host": "keys and prompts travel unencrypted: Forebay itself speaks no TLS",
        "admin_host": "whoever reaches this network can read the metrics",
    }
    for name, risk in risks.items():
        host = getattr(settings, name)
        if not _is_loopback(host):
            remedy = "put a proxy with TLS in front of it, and listen on 127.0.0.1"
            yield Finding("settings", "warning", f"{name} is {host}: {risk}", remedy)


def continuation(settings: Settings) -> Iterator[Finding]:
    """Which calls outlive their engine (E8)."""
    names = ", ".join(model.id for model in settings.models)
    yield Finding(
        "continuation",
        "ok",
        f"calls of {names} go on after preemption or an engine's failure, but for those with a seed "
        "and a temperature above 0, penalties, logprobs, a JSON response_format or n above 1",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def _locked(path: Path) -> Iterator[str | None]:
    """None with the directory's lock held; its owner if somebody else has it."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield file.read(32).strip() or "unknown"
            return
        yield None


def _checked(path: Path, check: Any) -> Finding:
    if not path.exists():
        return Finding("stores", "ok", f"{path.name} is not there yet")
    try:
        problems = check(path)
    except (apsw.Error, sqlite3.Error) as fault:
        problems = [str(fault)]
    if problems == ["ok"]:
        return Finding("stores", "ok", f"{path.name} is sound")
    text = f"{path.name}: {'; '.join(map(str, problems))}"
    return Finding("stores", "wrong", text, f"keep a copy of {path}, restore it from a backup")


def _check_ledger(path: Path) -> list[object]:
    # Without a write-ahead log nothing has to be recovered, and an immutable file leaves no trace
    # of having been read; after a crash there is a log, and SQLite has to read it.
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if log.exists() else "immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"{path.as_uri()}?{mode}", flags=flags)) as connection:
        return [each for (each,) in connection.execute("PRAGMA quick_check(3)")]


def _check_database(path: Path) -> list[object]:
    uri = f"{path.as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return [each for (each,) in connection.execute("PRAGMA quick_check(3)")]
