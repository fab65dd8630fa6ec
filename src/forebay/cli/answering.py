"""How a command asks an OpenAI-compatible server: streamed answers, short JSON, and what failures say.

Not here: what is asked (`dialogues.py`, `sitting.py`, `batching.py`), what is shown (`chat_view.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from forebay.cli.failure import Failure
from forebay.system import SystemClock

CONNECT_SECONDS = 10.0
# Forebay says something every 15 s, also while a call waits.
SILENCE_SECONDS = 120.0
_DROPPED = re.compile(r"\bdropped=(\d+)")


class Refused(Failure):
    """The server said no. `code` is the API's, empty where it has none."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the key for it. `here`: it is this machine's, and its usage can be asked."""

    url: str
    key: str = field(repr=False)
    here: bool = True

    def at(self, path: str) -> str:
        """The address of a resource; a URL without a path means its /v1."""
        base = self.url.rstrip("/")
        return base + ("" if urlsplit(base).path else "/v1") + path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it took; rates are None where there is nothing to measure.

    `dropped_turns`: how many earlier turns of the conversation the model was not shown.
    """

    text: str
    model: str
    call_id: str
    conversation_id: str | None
    dropped_turns: int
    finish_reason: str | None
    input_tokens: int
    output_tokens: int
    first_token_seconds: float | None
    tokens_per_second: float | None


@dataclass(slots=True)
class Reading:
    """What is known of an answer while it arrives."""

    started_at: float = 0.0
    call_id: str = ""
    conversation_id: str | None = None
    dropped_turns: int = 0
    pieces: list[str] = field(default_factory=list)
    first_at: float | None = None
    last_at: float | None = None
    model: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


async def first_model(target: Target) -> str:
    """The first model that the key may use. Raises Failure."""
    body = await ask(target, "GET", "/models")
    models = body.get("data") if isinstance(body, dict) else None
    if not models:
        raise Failure("This key may use no model.")
    return str(models[0]["id"])


async def ask(target: Target, method: str, path: str, body: object = None) -> Any:
    """The JSON that answers. Raises Failure, which is Refused if the server said no."""
    async with answered(target, method, path, body) as response:
        return await response.json(content_type=None)


async def answer(
    target: Target, request: Mapping[str, Any], reading: Reading, show: Callable[[str], None]
) -> Answer:
    """Ask, show each piece as it comes, and say what it took. Raises Failure.

    When cancelled it hangs up, which is how a server learns that nobody listens any more; what had
    come until then is in `reading`.
    """
    body = {**request, "stream": True, "stream_options": {"include_usage": True}}
    clock = SystemClock()
    reading.started_at = clock.monotonic()
    async with answered(target, "POST", "/chat/completions", body) as response:
        begin(reading, response.headers)
        async for chunk in chunks(response):
            if piece := take(reading, chunk, clock.monotonic()):
                show(piece)
    return finish(reading)


def begin(reading: Reading, headers: Mapping[str, str]) -> None:
    """Note what the headers say."""
    reading.call_id = headers.get("x-request-id", "")
    reading.conversation_id = headers.get("x-forebay-conversation")
    dropped = _DROPPED.search(headers.get("x-forebay-window", ""))
    reading.dropped_turns = int(dropped[1]) if dropped else 0


def take(reading: Reading, chunk: dict[str, Any], at: float) -> str:
    """Note what a chunk says; the text that it adds. Raises Failure if it is an error."""
    if "error" in chunk:
        raise Failure(error_message(chunk) or "The server broke the answer off.")
    reading.model = chunk.get("model") or reading.model
    reading.usage = chunk.get("usage") or reading.usage
    if not chunk.get("choices"):
        return ""
    choice = chunk["choices"][0]
    reading.finish_reason = choice.get("finish_reason") or reading.finish_reason
    piece: str = (choice.get("delta") or {}).get("content") or ""
    if piece:
        reading.pieces.append(piece)
        reading.first_at = at if reading.first_at is None else reading.first_at
        reading.last_at = at
    return piece


def error_message(body: object) -> str:
    """The API's own words; empty when it has none."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def finish(reading: Reading) -> Answer:
    """What it was, once nothing more comes."""
    tokens = int(reading.usage.get("completion_tokens", 0))
    rate = first = None
    if reading.first_at is not None and reading.last_at is not None:
        first = reading.first_at - reading.started_at
        seconds = reading.last_at - reading.first_at
        # The first token's time is the prompt's; the others' is the rate.
        rate = (tokens - 1) / seconds if tokens > 1 and seconds > 0 else None
    return Answer(
        text="".join(reading.pieces),
        model=reading.model,
        call_id=reading.call_id,
        conversation_id=reading.conversation_id,
        dropped_turns=reading.dropped_turns,
        finish_reason=reading.finish_reason,
        input_tokens=int(reading.usage.get("prompt_tokens", 0)),
        output_tokens=tokens,
        first_token_seconds=first,
        tokens_per_second=rate,
    )


async def chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event; comments and everything else of SSE are passed over."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if isinstance(chunk, dict):
            yield chunk
    raise Failure("The connection ended before the answer did.")


@asynccontextmanager
async def answered(
    target: Target,
    method: str,
    path: str,
    body: object = None,
    *,
    form: aiohttp.FormData | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A response with status 200, to JSON or a form. Raises Failure, Refused in the server's words."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method,
                target.at(path),
                json=body,
                data=form,
                headers=target.headers,
                allow_redirects=False,
            ) as response,
        ):
            if response.status != 200:
                raise await _refusal(response)
            yield response
    except TimeoutError:
        raise Failure(f"{target.url} does not answer.") from None
    except (aiohttp.ClientError, json.JSONDecodeError, UnicodeDecodeError) as fault:
        raise Failure(f"{target.url}: {fault or type(fault).__name__}") from None


async def _refusal(response: aiohttp.ClientResponse) -> Refused:
    try:
        body = await response.json(content_type=None)
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    message = error_message(body)
    code = body["error"].get("code") if message and isinstance(body["error"], dict) else None
    return Refused(
        message or f"{response.url} answered {response.status} {response.reason}.",
        response.status,
        code if isinstance(code, str) else "",
    )
