"""Builds the object graph of one machine by hand, and runs it.

    open_desk   the stores, for commands while no server runs
    serve       everything: stores, engines, workers, gateway, until it is told to stop

One process owns a data directory: it holds the lock on `lock` for as long as it lives, so that
nothing else opens its stores (and so that, at start, every earlier process is known to be dead).

Not here: models and engines (`models.py`), the roles that run (`plant.py`), what is said on a terminal
(`forebay.cli`), what a setting means (`forebay.config`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forebay import __version__
from forebay.admission.memory import MemoryAdmission
from forebay.alerts.http import HttpCourier
from forebay.alerts.sql import SqlAlerts
from forebay.batch.disk import DiskBlobs
from forebay.batch.sql import SqlBatches
from forebay.batch.sql_files import SqlFiles
from forebay.catalog import ModelSettings, price_terms
from forebay.config import Settings
from forebay.conversation.sql import SqlConversations
from forebay.core.hold import Account
from forebay.core.principal import OPERATOR
from forebay.engine.process import ChildEngine
from forebay.gateway.app import build_admin, build_public
from forebay.gateway.control import ControlServer
from forebay.gateway.serve import Listener, bind, with_address
from forebay.ledger.sqlite import SqliteLedger
from forebay.migrations import open_database
from forebay.observe import Metrics, get_logger
from forebay.pipeline.administration import Administration
from forebay.pipeline.alerting import Webhooks
from forebay.pipeline.desk import Desk
from forebay.pipeline.first_keys import cli_key, first_key
from forebay.pipeline.report import Reporter
from forebay.pipeline.resolve import Resolver
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.turns import CallTurns
from forebay.queue.memory import MemoryQueue
from forebay.stream.memory import MemoryStream
from forebay.system import (
    SystemClock,
    SystemIds,
    Tasks,
    share_the_interpreter,
    spare_the_collector,
)
from forebay.tenancy import derive, open_pepper, plans_by_name
from forebay.tenancy.sql import SqlTenancy
from forebay.tenancy.sql_admin_keys import SqlAdminKeys
from forebay.tenancy.sql_records import SqlJournal
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.model import ModelTokens
from forebay.wiring.ground import Ground, Ready, Watcher
from forebay.wiring.models import (
    catalog_of,
    describe_models,
    engine_of,
    require_summary_model,
    tokens_of,
    weights_of,
)
from forebay.wiring.plant import Plant

_log = get_logger("forebay")
WEBHOOK_PURPOSE = "webhook-signature"
# For answers that are broken off to say their last words.
BREAK_OFF_SECONDS = 3.0


class DirectoryBusy(Exception):
    """Another process owns the data directory; the message says which."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """How it ended: answers that were finished after the stop, holds that nobody will resolve (0),
    answers that were broken off (free) because somebody would not wait, and responses in the
    background and lines of batches that are left to the next start."""

    finished: int
    open_holds: int
    broken_off: int
    left: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """The first signal sets `graceful`, the second `now`."""

    graceful: asyncio.Event
    now: asyncio.Event


@asynccontextmanager
async def open_desk(settings: Settings) -> AsyncIterator[Administration]:
    """Administration without a server: takes the lock, opens the stores. Raises DirectoryBusy."""
    async with AsyncExitStack() as stack:
        _own(settings.data_dir, stack)
        ground = await _open_ground(settings, stack)
        yield _administration(settings, ground, None)


async def serve(settings: Settings, *, watcher: Watcher, stop: Stop) -> Farewell:
    """Run until told to stop. Raises what keeps it from starting, each with what to do.

    OSError (a port is taken), DirectoryBusy, WeightsError, EngineFault, StoreUnavailable, …
    """
    async with AsyncExitStack() as stack:
        require_summary_model(settings)
        # The cheapest refusals first. The lock before the ports: when this very installation runs
        # already, that is the reason worth telling.
        _own(settings.data_dir, stack)
        public = bind(settings.host, settings.port, flag="--port")
        stack.callback(public.close)
        admin = bind(settings.admin_host, settings.admin_port, flag="--admin-port")
        stack.callback(admin.close)
        ground = await _open_ground(settings, stack)
        plant = await _build_plant(settings, ground, watcher, stack)
        administration = _administration(settings, ground, plant)
        services = plant.services(administration)
        ids, gateway = ground.ids, with_address(settings.gateway, public)
        listeners = [
            Listener(build_public(services, gateway), public, settings=gateway, ids=ids),
            Listener(build_admin(services, gateway), admin, settings=gateway, ids=ids),
        ]
        control = ControlServer(settings.data_dir / "control.sock", administration)
        await plant.keeper.take_over(plant.adopt)
        await administration.budgets.apply_plans()
        await cli_key(settings.data_dir / "cli.key", administration)
        plant.start()
        await control.start()
        stack.push_async_callback(control.close)
        for listener in listeners:
            await listener.start(plant.spawn)
        plant.urls = (listeners[0].base_url, listeners[1].base_url)
        spare_the_collector()
        names = tuple(model.id for model in settings.models)
        _log.info("server_ready", base_url=listeners[0].base_url, models=names)
        # Made last, so that nothing can keep it from being shown.
        api_key = await first_key(administration)
        watcher.ready(Ready(listeners[0].base_url, listeners[1].base_url, api_key, names))
        farewell = await _run_until(stop, plant, listeners)
        await plant.meters.close_windows()
        left = len(await plant.rooms.logs.unfinished()) + await plant.lane.left()
        open_holds = await _open_holds(ground) - left
        return replace(farewell, open_holds=open_holds, left=left)


async def _run_until(stop: Stop, plant: Plant, listeners: Sequence[Listener]) -> Farewell:
    """Serve; then accept nothing new, finish what runs (or break it off), and say how it went.

    A role that ends by itself ends the server: without its worker, or its keeper, answers would
    never come. Raises what ended it.
    """
    a_role_ended = asyncio.wait(plant.roles, return_when=asyncio.FIRST_COMPLETED)
    ends = [plant.spawn(stop.graceful.wait(), name="stop"), plant.spawn(a_role_ended, name="roles")]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    plant.stopping = True
    pipeline, before = plant.pipeline, plant.pipeline.finished_calls
    _log.info("server_stopping", open_calls=plant.open_calls)
    drained = plant.spawn(_drain(plant, listeners), name="drain")
    if not any(role.done() for role in plant.roles):
        hurry = plant.spawn(stop.now.wait(), name="stop now")
        await asyncio.wait([hurry, drained], return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        plant.lane.let_go()
        await pipeline.break_off(seconds=BREAK_OFF_SECONDS)
        for worker in plant.workers:
            worker.let_go()
        await asyncio.wait([drained], timeout=BREAK_OFF_SECONDS)
        for listener in listeners:
            listener.stop_now()
        await asyncio.wait([drained], timeout=BREAK_OFF_SECONDS)
    for role in plant.roles:
        if role.done() and not role.cancelled() and (fault := role.exception()) is not None:
            raise fault
    return Farewell(pipeline.finished_calls - before, 0, pipeline.broken_off_calls)


async def _drain(plant: Plant, listeners: Sequence[Listener]) -> None:
    await plant.pipeline.summaries.stop()
    await plant.pipeline.background.suspend()
    await plant.lane.suspend()
    await asyncio.gather(*(listener.stop() for listener in listeners))
    await plant.pipeline.kept.drain()
    await plant.pipeline.background.drain()
    await plant.lane.drain()
    for worker in plant.workers:
        await worker.drain()


async def _open_ground(settings: Settings, stack: AsyncExitStack) -> Ground:
    """Open both files, publish the prices of the configuration."""
    share_the_interpreter()
    directory, clock, ids = settings.data_dir, SystemClock(), SystemIds()
    pepper = open_pepper(directory / "pepper", ids)
    database = await asyncio.to_thread(open_database, directory / "forebay.db")
    stack.callback(database.close)
    kept_bytes = settings.idempotency.kept_bytes
    ledger = await SqliteLedger.open(directory / "ledger.db", clock, answers_bytes=kept_bytes)
    stack.push_async_callback(ledger.close)
    for scope in OPERATOR:
        await ledger.open_account(Account(scope))
    plans = plans_by_name(settings.plans)
    tenancy = SqlTenancy(database, clock=clock, ids=ids, plans=plans, pepper=pepper)
    admin_keys = SqlAdminKeys(database, clock=clock, pepper=pepper)
    prices = [
        await ledger.publish_price(terms)
        for model in settings.models
        for terms in price_terms(model, settings.lane_factors)
    ]
    courier = HttpCourier()
    stack.push_async_callback(courier.close)
    webhooks = Webhooks(courier, derive(pepper, WEBHOOK_PURPOSE), clock, settings.alerts)
    journal, alerts = SqlJournal(database), SqlAlerts(database, ids)
    people = (tenancy, admin_keys, journal, alerts, webhooks)
    return Ground(ledger, database, *people, prices, clock, ids, Tasks(), Metrics())


def _own(directory: Path, stack: AsyncExitStack) -> None:
    """Make the directory if need be, and hold its lock. Raises DirectoryBusy."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack.callback(os.close, _lock(directory))


def _lock(directory: Path) -> int:
    """An exclusive lock that lives as long as its file descriptor."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode().strip() or "unknown"
        os.close(descriptor)
        raise DirectoryBusy(
            f"Another Forebay (process {owner}) owns {directory}. "
            "Stop it, or choose another directory with --data-dir."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


async def _build_plant(
    settings: Settings, ground: Ground, watcher: Watcher, stack: AsyncExitStack
) -> Plant:
    """Fetch, load and warm up every model; the tokenizer is read while its engine starts."""
    organisations = await ground.tenancy.organisations()
    tokens: dict[str, ModelTokens] = {}
    engines: list[tuple[ModelSettings, ChildEngine]] = []
    for model in settings.models:
        weights = await weights_of(settings, model, watcher)
        watcher.starting(model.id)
        engine = engine_of(settings, model, weights, ground, alone=len(organisations) <= 1)
        stack.push_async_callback(engine.close)
        _, tokens[model.id] = await asyncio.gather(
            engine.start(), asyncio.to_thread(tokens_of, model, weights, ground.ids)
        )
        engines.append((model, engine))
    reporter = Reporter(ground.metrics)
    conversations = SqlConversations(ground.database, settings.conversation, ground.clock)
    remember = CallTurns(
        conversations,
        conversations.turns,
        ground.ledger,
        reporter,
        ground.ids,
        settings.conversation,
    )
    rooms = Rooms(
        tenancy=ground.tenancy,
        admission=MemoryAdmission(settings.admission, ground.clock, ground.ids),
        catalog=catalog_of(settings, ground),
        conversations=conversations,
        turns=conversations.turns,
        logs=conversations.logs,
        summaries=conversations.summaries,
        files=SqlFiles(ground.database, settings.batch, ground.clock),
        blobs=DiskBlobs(settings.data_dir / "files"),
        batches=SqlBatches(ground.database, ground.clock),
        tokens=HuggingFaceTokens(tokens, settings.tokens),
        ledger=ground.ledger,
        queue=MemoryQueue(settings.queue, ground.clock),
        stream=MemoryStream(ground.clock),
        clock=ground.clock,
        ids=ground.ids,
        spawn=ground.spawn,
        report=reporter,
        resolve=Resolver(ground.ledger, ground.spawn, reporter, concluded=remember.concluded),
        remember=remember,
    )
    plant = Plant(settings, ground, rooms)
    for model, engine in engines:
        plant.add(model, engine)
    return plant


def _administration(settings: Settings, ground: Ground, plant: Plant | None) -> Administration:
    return Administration(
        Desk(
            tenancy=ground.tenancy,
            directory=ground.tenancy,
            admin_keys=ground.admin_keys,
            journal=ground.journal,
            alerts=ground.alerts,
            webhooks=ground.webhooks,
            ledger=ground.ledger,
            books=ground.ledger,
            records=ground.ledger.records,
            engines=plant.engines if plant else (),
            models=lambda: describe_models(settings, ground.prices),
            status=plant.status if plant else _no_server,
            activity=plant.activity.look if plant else _no_server,
            clock=ground.clock,
            ids=ground.ids,
        )
    )


async def _open_holds(ground: Ground) -> int:
    """Holds without a resolution, asked of the ledger: 0 after an orderly end."""
    projects = await ground.tenancy.projects()
    organisations = {project.scopes.organisation_id for project in projects}
    organisations.add(OPERATOR.organisation_id)
    balances = [await ground.ledger.balances(each) for each in organisations]
    return sum(balance.open_holds for balance in balances)


async def _no_server() -> dict[str, Any]:
    return {"version": __version__, "pid": None}
