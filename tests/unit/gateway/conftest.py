"""A fake pipeline behind the real gateway: the seam at which these tests stand in for the corridor."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from forebay.admission import Standing
from forebay.batch import BatchSettings
from forebay.conversation import ConversationSettings
from forebay.conversation.memory import MemoryConversations
from forebay.core.call import Call
from forebay.core.delta import FinishReason
from forebay.core.dialogue import Item, Page, Turn, TurnState
from forebay.core.errors import InvalidKey, NotFound
from forebay.core.event import Admitted, CallEvent, Delta, Finished, Started
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes
from forebay.core.usage import Usage
from forebay.gateway import GatewaySettings, Readiness, Services
from forebay.gateway.app import build_admin, build_public
from forebay.gateway.serve import Listener, bind
from forebay.observe.metrics import Metrics
from forebay.pipeline.administration import Administration
from forebay.pipeline.background import Begun
from forebay.pipeline.dialogues import Dialogues
from forebay.pipeline.turns import ShownTurns
from forebay.system import Tasks
from forebay.tenancy import PlanSettings
from forebay.testing.clock import CountingIds, FakeClock
from forebay.testing.desk import memory_desk
from tests.unit.gateway.catalog import FakeCatalog
from tests.unit.gateway.desks import Desks
from tests.unit.gateway.tenants import Tenant, tenant

GOLDEN = Path(__file__).parents[2] / "golden" / "wire"
SECRET, OTHER_SECRET = "fbk_live_test", "fbk_live_other"
PRINCIPAL = Principal(Scopes("org_1", "project_1", "key_1"), weight=1, lanes=frozenset(Lane))
STRANGER = Principal(Scopes("org_2", "project_2", "key_2"), weight=1, lanes=frozenset(Lane))
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


SMALL = PlanSettings(name="small", tokens_per_minute=500)


class FakePipeline:
    """Plays `script`: events are yielded, errors raised, numbers slept, asyncio events awaited."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.refusal: Exception | None = None
        self.calls: list[Call] = []
        self.knocks = 0
        self.weights: list[int] = []
        self.asked: list[str | None] = []
        self.stands = Standing()
        self.left = asyncio.Event()
        self.ending: str | None = None

    async def knock(self, principal: Principal) -> None:
        self.knocks += 1
        if self.refusal is not None:
            raise self.refusal

    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        self.weights.append(body_bytes)

    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        self.asked.append(model)
        return self.stands

    async def count(self, call: Call) -> int:
        self.calls.append(call)
        return 17

    async def run(self, call: Call) -> AsyncGenerator[list[CallEvent], None]:
        self.calls.append(call)
        bunch: list[CallEvent] = []
        try:
            for item in self.script:
                if not isinstance(item, BaseException | asyncio.Event | float):
                    bunch.append(_of(call, item))
                    continue
                if bunch:
                    yield bunch
                    bunch = []
                if isinstance(item, BaseException):
                    raise item
                await (item.wait() if isinstance(item, asyncio.Event) else asyncio.sleep(item))
            if bunch:
                yield bunch
            self.ending = "exhausted"
        except BaseException as end:
            self.ending = type(end).__name__
            raise
        finally:
            self.left.set()


def _of(call: Call, event: CallEvent) -> CallEvent:
    """The event as this call's own, unless it is a replay of another's."""
    if isinstance(event, Admitted) and not event.replayed:
        return replace(event, call_id=call.id)
    return event


class FakeTurns(ShownTurns):
    """Responses of the one organisation that there is."""

    def __init__(self) -> None:
        self.kept: dict[str, Turn] = {}

    async def response(self, principal: Principal, id: str) -> Turn:
        if id not in self.kept:
            raise NotFound(f"There is no response {id!r}.")
        return self.kept[id]

    async def forget(self, principal: Principal, id: str) -> None:
        await self.response(principal, id)
        del self.kept[id]

    async def input_items(self, principal: Principal, id: str, page: Page) -> list[Item]:
        items = [*(await self.response(principal, id)).input]
        if page.newest_first:
            items.reverse()
        begin = [item.id for item in items].index(page.after) + 1 if page.after else 0
        return items[begin : begin + page.limit]


class FakeBackground:
    """Calls that never end by themselves, but for what `script` says of those that are read."""

    def __init__(self, turns: FakeTurns) -> None:
        self._turns = turns
        self.calls: list[Call] = []
        self.forgotten: list[str] = []
        self.logged: set[str] = set()
        self.begun: set[str] = set()
        self.before: str | None = None
        self.refusal: Exception | None = None
        self.script: list[CallEvent] = []

    async def start(self, call: Call) -> Begun:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(call)
        wish = call.remembrance
        assert wish is not None
        assert wish.turn_id is not None
        turn = Turn(
            wish.turn_id,
            "org_1",
            call.id,
            FakeClock().now(),
            0.0,
            wish.input,
            record=wish.record,
            background=True,
        )
        self._turns.kept[turn.id] = turn
        self.logged |= {turn.id} if call.logged else set()
        return Begun(replace(admitted(call.lane), call_id=call.id), turn)

    async def begun_before(self, call: Call) -> str | None:
        return self.before if call.idempotency else None

    def is_begun(self, turn: Turn) -> bool:
        return turn.id in self.begun

    async def is_logged(self, turn: Turn) -> bool:
        return turn.id in self.logged

    async def read(self, turn: Turn) -> AsyncGenerator[list[CallEvent], None]:
        yield [replace(admitted(), call_id=turn.call_id)]
        for event in self.script:
            yield [event]

    async def cancel(self, turn: Turn) -> Turn:
        if turn.id not in self._turns.kept:
            raise KeyError(turn.id)
        if turn.state.is_pending:
            turn = replace(turn, state=TurnState.CANCELLED, reason="client_gone")
            self._turns.kept[turn.id] = turn
        return turn

    async def forget(self, conversation_id: str) -> None:
        self.forgotten.append(conversation_id)


class FakeTenancy:
    def __init__(self) -> None:
        self.secrets: list[str] = []

    async def authenticate(self, secret: str) -> Principal:
        self.secrets.append(secret)
        if secret not in (SECRET, OTHER_SECRET):
            raise InvalidKey
        return PRINCIPAL if secret == SECRET else STRANGER


def admitted(lane: Lane = Lane.INTERACTIVE) -> Admitted:
    return Admitted("req_0", FakeClock().now(), "tiny-1", lane, "fp_0123456789ab", 5)


def script(*texts: str, lane: Lane = Lane.INTERACTIVE, **finish: Any) -> list[CallEvent]:
    """A call that answers with these deltas, one token each."""
    events: list[CallEvent] = [admitted(lane), Started(1, 1, 3)]
    events += [Delta(i + 2, 1, 0, (i,), text) for i, text in enumerate(texts)]
    return [*events, finished(len(texts) + 2, len(texts), **finish)]


def finished(
    sequence: int, tokens: int, *, cached: int = 0, reason: FinishReason | None = FinishReason.STOP
) -> Finished:
    usage = Usage(5, tokens, cached, finish_reasons=(reason,))
    return Finished(sequence, 1, usage, 17_100, (reason,))


@dataclass
class Answer:
    """What an application sent: `sends` are the bodies, one for each `send`."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    sends: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.sends)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.json()) == {"error"}
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def data(self) -> list[str]:
        """The data lines of an event stream."""
        lines = self.body.decode().split("\n")
        return [line[6:] for line in lines if line.startswith("data: ")]

    def chunks(self) -> list[Any]:
        """The JSON of all events but [DONE], which must be last."""
        data = self.data()
        assert data[-1] == "[DONE]"
        return [json.loads(item) for item in data[:-1]]

    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks() for choice in chunk["choices"]]
        return "".join(delta.get("content", "") for delta in deltas)


class Gateway:
    """The applications over fakes, and ways to call them."""

    def __init__(self) -> None:
        self.pipeline = FakePipeline()
        self.readiness = Readiness()
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.settings = GatewaySettings()
        self.tasks = Tasks()
        self.tenancy = FakeTenancy()
        self.turns = FakeTurns()
        self.background = FakeBackground(self.turns)
        self.conversations = MemoryConversations(ConversationSettings(), self.clock)
        self.catalog = FakeCatalog()
        self.ids = ids = CountingIds()
        self.desks = Desks(self.clock, ids)
        self.services = Services(
            pipeline=self.pipeline,
            catalog=self.catalog,
            tenancy=self.tenancy,  # type: ignore[arg-type]
            metrics=self.metrics,
            ids=ids,
            clock=self.clock,
            spawn=self.tasks,
            health=lambda: self.readiness,
            administration=Administration(memory_desk(self.clock, [SMALL])),
            dialogues=Dialogues(self.conversations, self.clock, ids, ConversationSettings()),
            turns=self.turns,
            background=self.background,
            files=self.desks.files,
            batches=self.desks.batches,
        )

    def settle(self, **settings: Any) -> None:
        """Batches have these settings from here on."""
        self.desks = Desks(self.clock, self.ids, BatchSettings(**settings))
        self.services = replace(self.services, files=self.desks.files, batches=self.desks.batches)

    def script(self, *items: Any, **options: Any) -> None:
        """Texts become a whole answer; anything else is played as it is."""
        texts = all(isinstance(item, str) for item in items)
        self.pipeline.script = script(*items, **options) if texts else list(items)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | list[Any] = b"",
        headers: dict[str, str] | None = None,
        admin: bool = False,
        gone: asyncio.Event | None = None,
        send_hook: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Answer:
        """Call the application directly; a list as body arrives in these parts (numbers: pauses)."""
        app = (build_admin if admin else build_public)(self.services, self.settings)
        all_headers = {"authorization": f"Bearer {SECRET}", **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in all_headers.items()],
        }
        parts = [body] if isinstance(body, bytes) else list(body)
        answer = Answer()
        left = gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            while parts:
                part = parts.pop(0)
                if isinstance(part, float):
                    await asyncio.sleep(part)
                    continue
                if part is None:
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": part, "more_body": bool(parts)}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if send_hook is not None:
                result = send_hook(message)
                if result is not None:
                    await result
            if message["type"] == "http.response.start":
                assert answer.status == 0, "one status line per request"
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                assert answer.status != 0, "the status line comes first"
                answer.sends.append(message["body"])
                answer.complete = not message.get("more_body", False)

        await app(scope, receive, send)
        return answer

    async def chat(self, request: dict[str, Any] | None = None, **options: Any) -> Answer:
        """POST this on top of a valid request."""
        body = json.dumps({**HELLO, **(request or {})}).encode()
        return await self.request("POST", "/v1/chat/completions", body=body, **options)

    async def stream(self, request: dict[str, Any] | None = None, **options: Any) -> Answer:
        """The same, streamed."""
        return await self.chat({"stream": True, **(request or {})}, **options)

    @property
    def call(self) -> Call:
        """The only call that reached the pipeline."""
        (call,) = self.pipeline.calls
        return call


class Client:
    """A raw HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, request: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        body = json.dumps({**HELLO, **request}).encode()
        await self.send(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), 10)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 10)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def listener(gateway: Gateway) -> AsyncIterator[Callable[..., Any]]:
    """Starts the public application on a real socket; returns it."""
    running: list[Listener] = []

    async def start() -> Listener:
        app = build_public(gateway.services, gateway.settings)
        bound = bind("127.0.0.1", 0, flag="--port")
        one = Listener(app, bound, settings=gateway.settings, ids=gateway.services.ids)
        await one.start(gateway.tasks)
        running.append(one)
        return one

    yield start
    for one in running:
        one.stop_now()
        await one.stop()


@pytest.fixture
async def connect(listener: Callable[..., Any]) -> AsyncIterator[Callable[[], Any]]:
    """Opens raw connections to one public listener."""
    clients: list[Client] = []
    servers: list[Listener] = []

    async def open_one() -> Client:
        if not servers:
            servers.append(await listener())
        client = Client(*await asyncio.open_connection("127.0.0.1", servers[0].port))
        clients.append(client)
        return client

    open_one.servers = servers  # type: ignore[attr-defined]
    yield open_one
    for client in clients:
        await client.close()


@pytest.fixture
def golden() -> Callable[[str, bytes], None]:
    """Compares with a file in tests/golden/wire, or rewrites it (`make golden`)."""

    def check(name: str, found: bytes) -> None:
        path = GOLDEN / name
        if os.environ.get("FOREBAY_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found)
        assert path.exists(), f"{name} is missing: run `make golden` and review it"
        assert found.decode() == path.read_bytes().decode()

    return check


@pytest.fixture
def events() -> Any:
    """The event builders."""

    class Events:
        admitted = staticmethod(admitted)
        delta = staticmethod(lambda sequence, text: Delta(sequence, 1, 0, (sequence,), text))
        finished = staticmethod(finished)
        script = staticmethod(script)

    return Events


@pytest.fixture
async def ours(gateway) -> Tenant:
    return await tenant(gateway, "ours")


@pytest.fixture
async def theirs(gateway, ours) -> Tenant:
    return await tenant(gateway, "theirs")
