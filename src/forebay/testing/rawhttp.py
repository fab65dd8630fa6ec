"""A raw-socket client for chat completions: for tests and measurements, where an SDK would hide things.

It shows when bytes arrive, hangs up when told to, and costs little: events are counted by their
bytes, nothing is parsed per chunk. Times are CLOCK_MONOTONIC, which all processes of a machine share.

Not here: OpenAI's own SDK, which the end-to-end tests use for what users do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

_CONTENT, _ROLE = b'"content":"', b'"content":"","refusal"'


@dataclass(slots=True)
class Answer:
    """What one request looked like from outside."""

    started_at: float
    first_at: float | None = None
    left_at: float | None = None
    ended_at: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    events: int = 0
    complete: bool = False

    @property
    def request_id(self) -> str:
        """Ours, once the head has arrived."""
        return self.headers.get("x-request-id", "")

    def json(self) -> Any:
        """The body of an answer that was not streamed."""
        return msgspec.json.decode(self.body)

    def text(self) -> str:
        """The text of a streamed answer so far."""
        parts = []
        for line in self.body.split(b"\n"):
            if line.startswith(b"data: {"):
                for choice in msgspec.json.decode(line[6:]).get("choices", ()):
                    parts.append(choice["delta"].get("content") or "")
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Leave:
    """When to hang up: after so many content events, or after so many seconds."""

    events: int | None = None
    seconds: float | None = None


class RawClient:
    """One connection. `keep` False forgets bodies (measurements)."""

    def __init__(self, host: str, port: int, key: str, *, keep: bool = True) -> None:
        self._host, self._port, self._key, self._keep = host, port, key, keep
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._length: int | None = None

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection, made now if there is none: so that many calls can begin at once.

        One that the server closed while it was idle is made anew, as every client does.
        """
        if self._link is not None and self._link[0].at_eof():
            await self.close()
        if self._link is None:
            self._link = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        return self._link

    async def post(
        self, body: dict[str, Any], leave: Leave | None = None, headers: str = ""
    ) -> Answer:
        """Ask for a completion; an answer that was left is not `complete`.

        `headers`: more header lines, each with its CR LF.
        """
        leave = leave or Leave()
        reader, writer = await self.connect()
        answer = Answer(time.monotonic())
        writer.write(self._request(body, headers))
        try:
            async with asyncio.timeout(leave.seconds):
                await self._head(reader, answer)
                await self._body(reader, answer, leave.events)
        except TimeoutError:
            pass
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.close()
        answer.ended_at = time.monotonic()
        if not answer.complete and self._link is not None:
            writer.transport.abort()
            answer.left_at = time.monotonic()
            self._link = None
        return answer

    async def close(self) -> None:
        """Hang up. Idempotent."""
        if self._link is not None:
            writer, self._link = self._link[1], None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _request(self, body: dict[str, Any], headers: str) -> bytes:
        data = msgspec.json.encode(body)
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Authorization: Bearer {self._key}\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(data)}\r\n\r\n"
        ).encode() + data

    async def _head(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        answer.headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        answer.status = int(lines[0].split()[1])
        length = answer.headers.get("content-length")
        self._length = None if length is None else int(length)

    async def _body(
        self, reader: asyncio.StreamReader, answer: Answer, leave_after: int | None
    ) -> None:
        if self._length is not None:
            answer.body += await reader.readexactly(self._length)
            answer.complete = True
        while not answer.complete:
            data = await reader.read(1 << 16)
            if not data:
                raise ConnectionResetError
            fresh = data.count(_CONTENT) - data.count(_ROLE)
            if fresh and answer.first_at is None:
                answer.first_at = time.monotonic()
            answer.events += fresh
            if self._keep:
                answer.body += data
            answer.complete = data.endswith(b"0\r\n\r\n")
            if leave_after is not None and answer.events >= leave_after:
                return
