"""What `forebay batch submit` makes of a file: the lines of a batch file. It holds one line at a time.

The first line says what the file is:

    {"custom_id": …, "url": …, "body": …}    a batch file: it goes as it is, but for --model
    {"messages": …}, {"prompt": …}, "text"   work as JSON: a request's body or a prompt per line
    anything else                            work as text: a prompt per line

A line of work becomes `{"custom_id": "line-7", "method": "POST", "url": …, "body": …}`, where 7 is
its number in the file. Lines with nothing in them are left out. What is certainly wrong is told with
its line, before anything is sent.

Not here: sending (`batching.py`), what only the server can find wrong (it is in the batch's errors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from forebay.cli.failure import WRONG_USE, Failure

# OpenAI's limits.
MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
# Four times the largest request that a server takes unless told otherwise.
LINE_BYTES = 16 * 1024 * 1024
# None of them is a field of a request.
BATCH_FIELDS = {"custom_id", "method", "url", "body"}


class Endpoint(StrEnum):
    """What a line may be for."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"


# The field that a request's body must have. Responses first: they may have a `prompt` as well.
_NEEDED = {
    Endpoint.RESPONSES: "input",
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for; None: as the lines say. `first_model` is for lines that name none."""

    name: str
    model: str | None
    endpoint: Endpoint | None
    first_model: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was written; `model` is the one that was filled in, if any was."""

    lines: int
    endpoint: str
    model: str | None


def prepare(source: BinaryIO, into: BinaryIO, order: Order) -> Prepared:
    """Write what is to be uploaded. Raises Failure at the first line that is certainly wrong."""
    shape: _BatchFile | _Work | None = None
    lines = size_bytes = 0
    for number, raw in enumerate(iter(lambda: source.readline(LINE_BYTES + 1), b""), 1):
        try:
            text = _text(raw, is_first=number == 1)
            if not text.strip():
                continue
            shape = shape or _shape(text, order)
            line = shape.line(number, text) + b"\n"
            lines, size_bytes = lines + 1, size_bytes + len(line)
            _bounded(lines, size_bytes)
        except ValueError as fault:
            raise Failure(f"{order.name}, line {number}: {fault}", WRONG_USE) from None
        into.write(line)
    if shape is None:
        raise Failure(f"{order.name} is empty: there is nothing to submit.", WRONG_USE)
    return Prepared(lines, shape.endpoint, shape.filled_in)


def _text(raw: bytes, *, is_first: bool) -> str:
    if len(raw) > LINE_BYTES:
        raise ValueError(f"it is longer than {LINE_BYTES} bytes, more than any request may have.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        raise ValueError(
            f"its byte {fault.start + 1} is not UTF-8. Save the file as UTF-8 text."
        ) from None
    return (text.removeprefix("\ufeff") if is_first else text).rstrip("\r\n")


def _bounded(lines: int, size_bytes: int) -> None:
    if lines > MAX_LINES:
        raise ValueError(f"a batch has at most {MAX_LINES} lines. Split the file.")
    if size_bytes > MAX_BYTES:
        raise ValueError(f"a batch file has at most {MAX_BYTES} bytes. Split the file.")


def _shape(first: str, order: Order) -> _BatchFile | _Work:
    if not first.startswith(("{", '"')) and not _begins_array(first):
        return _Work(order, order.endpoint or Endpoint.CHAT, is_json=False)
    value = _decoded(first)
    if isinstance(value, dict) and BATCH_FIELDS & value.keys():
        return _BatchFile(order, str(order.endpoint or value.get("url") or Endpoint.CHAT))
    return _Work(order, order.endpoint or _endpoint(value), is_json=True)


def _begins_array(first: str) -> bool:
    """Whether it is an array, or its first line, and not text that begins with a bracket."""
    if not first.startswith("["):
        return False
    try:
        return first.rstrip() == "[" or isinstance(_decoded(first), list)
    except ValueError:
        return False


def _endpoint(value: object) -> Endpoint:
    """What a first line is for, by the field that only one endpoint needs."""
    fields = value if isinstance(value, dict) else {}
    found = (each for each, field in _NEEDED.items() if field in fields)
    return next(found, Endpoint.CHAT)


def _decoded(text: str) -> Any:
    from msgspec import DecodeError
    from msgspec.json import decode

    try:
        return decode(text)
    except DecodeError as fault:
        raise ValueError(
            f'it is not JSON ({fault}). A file whose first line begins with {{, [ or " has JSON '
            "on each line, whole; if it is text, begin that line with a space."
        ) from None


def _encoded(value: object) -> bytes:
    from msgspec.json import encode

    return encode(value)


def _check_model(said: object, order: Order) -> None:
    if order.model is not None and said != order.model:
        raise ValueError(
            f"its model is {said!r:.100}, and --model says {order.model!r}. Leave --model out, or "
            "the model out of the line."
        )


class _BatchFile:
    """Lines that are whole already."""

    filled_in: str | None = None

    def __init__(self, order: Order, endpoint: str) -> None:
        self.endpoint = endpoint
        self._order = order

    def line(self, number: int, text: str) -> bytes:
        """The same, with the model where it names none. Raises ValueError."""
        value = _decoded(text)
        if not isinstance(value, dict) or not BATCH_FIELDS & value.keys():
            raise ValueError(
                "it has no custom_id, method, url and body, as the first line has. Make every line "
                "one of a batch file, or none."
            )
        url, body = value.get("url"), value.get("body")
        if isinstance(url, str) and url != self.endpoint:
            raise ValueError(
                f"its url is {url!r:.100}, and the batch is for {self.endpoint}. A batch has one "
                "endpoint: split the file."
            )
        if self._order.model is None or not isinstance(body, dict):
            return text.encode()
        if body.get("model") is not None:
            _check_model(body["model"], self._order)
            return text.encode()
        self.filled_in = self._order.model
        return _encoded({**value, "body": {**body, "model": self.filled_in}})


class _Work:
    """Lines that are to be made whole."""

    def __init__(self, order: Order, endpoint: Endpoint, *, is_json: bool) -> None:
        self.endpoint = endpoint
        self.filled_in: str | None = None
        self._order = order
        self._is_json = is_json

    def line(self, number: int, text: str) -> bytes:
        """A line of a batch file that asks for this. Raises ValueError."""
        body = self._body(_decoded(text)) if self._is_json else self._prompt(text)
        if body.get("model") is None:
            self.filled_in = self.filled_in or self._order.model or self._order.first_model()
            body = {**body, "model": self.filled_in}
        else:
            _check_model(body["model"], self._order)
        whole = {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": self.endpoint,
            "body": body,
        }
        return _encoded(whole)

    def _body(self, value: object) -> dict[str, Any]:
        if isinstance(value, str):
            return self._prompt(value)
        if not isinstance(value, dict):
            raise ValueError(
                "it is neither text nor a request's body. Write a file of JSON values, one on each "
                'line: "text", {"messages": […]} or {"prompt": …}, and no array around them.'
            )
        needed = _NEEDED[self.endpoint]
        if needed in value:
            return value
        if isinstance(prompt := value.get("prompt"), str):
            rest = {name: each for name, each in value.items() if name != "prompt"}
            return {**rest, **self._prompt(prompt)}
        raise ValueError(
            f"it has no {needed!r}, which {self.endpoint.value} needs. --endpoint names another."
        )

    def _prompt(self, text: str) -> dict[str, Any]:
        is_chat = self.endpoint is Endpoint.CHAT
        said = [{"role": "user", "content": text}] if is_chat else text
        return {_NEEDED[self.endpoint]: said}
