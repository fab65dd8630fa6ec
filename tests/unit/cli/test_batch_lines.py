from __future__ import annotations

import io
import json
import tempfile
import tracemalloc
from typing import Any

import pytest

from forebay.cli.batch_lines import LINE_BYTES, MAX_LINES, Endpoint, Order, Prepared, prepare
from forebay.cli.failure import WRONG_USE, Failure

CHAT = {"messages": [{"role": "user", "content": "Hi."}]}
BATCH = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}


def order(model: str | None = None, endpoint: Endpoint | None = None) -> Order:
    return Order("work.txt", model, endpoint, lambda: "first")


def prepared(file: bytes, wanted: Order | None = None) -> tuple[Prepared, list[dict[str, Any]]]:
    into = io.BytesIO()
    told = prepare(io.BytesIO(file), into, wanted or order())
    assert into.getvalue().endswith(b"\n")
    return told, [json.loads(line) for line in into.getvalue().splitlines()]


def jsonl(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def refusal(file: bytes, wanted: Order | None = None) -> str:
    with pytest.raises(Failure) as refused:
        prepared(file, wanted)
    assert refused.value.exit_code == WRONG_USE
    return str(refused.value)


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "model": "first"}


def test_lines_of_text_are_prompts_and_named_after_their_place():
    told, lines = prepared("\ufeffWhat is é?\r\n\n   \n Why?".encode())
    assert told == Prepared(2, "/v1/chat/completions", "first")
    assert lines == [
        {
            "custom_id": "line-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": chat("What is é?"),
        },
        {
            "custom_id": "line-4",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": chat(" Why?"),
        },
    ]


@pytest.mark.parametrize(
    ("first", "endpoint", "body"),
    [
        ("Hi.", None, chat("Hi.")),
        (CHAT, None, {**CHAT, "model": "first"}),
        ({"prompt": "Hi."}, None, {"prompt": "Hi.", "model": "first"}),
        ({"prompt": [1, 2]}, None, {"prompt": [1, 2], "model": "first"}),
        ({"input": "Hi.", "prompt": {}}, None, {"input": "Hi.", "prompt": {}, "model": "first"}),
        ({**CHAT, "model": "own", "n": 2}, None, {**CHAT, "model": "own", "n": 2}),
        ("Hi.", Endpoint.COMPLETIONS, {"prompt": "Hi.", "model": "first"}),
        ("Hi.", Endpoint.RESPONSES, {"input": "Hi.", "model": "first"}),
        ({"prompt": "Hi.", "n": 2}, Endpoint.CHAT, {**chat("Hi."), "n": 2}),
        ({"prompt": "Hi."}, Endpoint.RESPONSES, {"input": "Hi.", "model": "first"}),
    ],
)
def test_lines_of_json_are_prompts_or_bodies_for_where_the_first_one_goes(first, endpoint, body):
    told, [line] = prepared(jsonl(first), order(endpoint=endpoint))
    assert line["body"] == body
    by_field = {"prompt": Endpoint.COMPLETIONS, "input": Endpoint.RESPONSES}
    goes = endpoint or next(
        (by_field[name] for name in ("input", "prompt") if name in body), Endpoint.CHAT
    )
    assert told.endpoint == line["url"] == goes.value


def test_the_servers_first_model_is_asked_for_only_where_a_line_names_none():
    asked: list[str] = []
    wanted = Order("x", None, None, lambda: asked.append("asked") or "first")  # type: ignore[func-returns-value]
    own = {**CHAT, "model": "own"}
    assert prepared(jsonl(own), wanted)[0].model is None
    assert asked == []
    told, lines = prepared(jsonl(own, CHAT, CHAT), wanted)
    assert [line["body"]["model"] for line in lines] == ["own", "first", "first"]
    assert (told.model, asked) == ("first", ["asked"])


def test_a_batch_file_goes_as_it_is():
    text = json.dumps(BATCH, indent=None, separators=(" , ", " : "))
    into = io.BytesIO()
    told = prepare(io.BytesIO(f"{text}\n\n{text}".encode()), into, order())
    assert into.getvalue() == f"{text}\n{text}\n".encode()
    assert told == Prepared(2, "/v1/chat/completions", None)


def test_a_batch_files_endpoint_is_its_first_lines():
    line = {**BATCH, "url": "/v1/embeddings"}
    assert prepared(jsonl(line))[0].endpoint == "/v1/embeddings"
    assert prepared(jsonl({"custom_id": "a"}))[0].endpoint == "/v1/chat/completions"
    said = refusal(jsonl(line), order(endpoint=Endpoint.COMPLETIONS))
    assert "line 1: its url is '/v1/embeddings', and the batch is for /v1/completions" in said
    assert "line 2: its url is '/v1/embeddings'" in refusal(jsonl(BATCH, line))


def test_a_model_is_filled_in_where_a_batch_file_has_none_and_never_changed():
    own = {**BATCH, "body": {**CHAT, "model": "small"}}
    told, lines = prepared(jsonl(own, BATCH), order("small"))
    assert told.model == "small"
    assert lines == [own, own]
    assert "line 1: its model is 'small', and --model says 'large'" in refusal(
        jsonl(own), order("large")
    )
    assert "line 2: its model is 'small'" in refusal(
        jsonl(CHAT, {**CHAT, "model": "small"}), order("large")
    )


def test_what_a_server_must_judge_is_not_judged_here():
    lines = ({**BATCH, "body": 5}, {**BATCH, "custom_id": None}, {"url": 7, "body": {}}, BATCH)
    assert prepared(jsonl(*lines), order("small"))[0].lines == 4


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (b"", "work.txt is empty"),
        (b"\n \n", "work.txt is empty"),
        (b"a\n\xff\xfeb\n", "work.txt, line 2: its byte 1 is not UTF-8"),
        ("a\n".encode("utf-16"), "work.txt, line 1: its byte 1 is not UTF-8"),
        (b'{"messages": []}\n{"messages"\n', "line 2: it is not JSON ("),
        (b'{\n  "messages": []\n}\n', "line 1: it is not JSON ("),
        (b'"a"\nb\n', "begin that line with a space"),
        (b'[\n{"messages": []}\n]\n', 'first line begins with {, [ or " has JSON on each line'),
        (b'[{"messages": []}]\n', "line 1: it is neither text nor a request's body"),
        (b'"a"\n7\n', "line 2: it is neither text nor a request's body"),
        (b'"a"\n{"prompt": [1]}\n', "line 2: it has no 'messages', which /v1/chat/completions"),
        (b'{"temperature": 1}\n', "line 1: it has no 'messages'"),
        (jsonl(CHAT, BATCH), "line 2: it has no 'messages'"),
        (jsonl(BATCH, CHAT), "line 2: it has no custom_id, method, url and body"),
        (jsonl(BATCH, "text"), "line 2: it has no custom_id, method, url and body"),
    ],
)
def test_what_is_certainly_wrong_is_told_with_its_line(file, said):
    assert said in refusal(file)


@pytest.mark.parametrize("text", [' {"a": 1}', ' "quoted"', "[Scene 1] A bridge.", "7"])
def test_text_may_look_like_json(text):
    _, [line] = prepared(text.encode())
    assert line["body"] == chat(text)


def test_no_more_lines_than_a_batch_may_have():
    file = b"a\n" * MAX_LINES
    assert prepared(file)[0].lines == MAX_LINES
    assert prepared(file + b"\n \n")[0].lines == MAX_LINES
    assert f"line {MAX_LINES + 1}: a batch has at most 50000 lines" in refusal(file + b"a")


def test_no_more_bytes_than_a_batch_file_may_have(monkeypatch):
    monkeypatch.setattr("forebay.cli.batch_lines.MAX_BYTES", 250)
    assert "line 2: a batch file has at most 250 bytes" in refusal(b"a\nb\n")


class Endless(io.RawIOBase):
    """So many bytes that are never there all at once, in lines of a kilobyte or in one."""

    def __init__(self, size_bytes: int, *, lines: bool) -> None:
        self._left = size_bytes
        self._piece = b"x" * 1023 + (b"\n" if lines else b"x")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._piece[: min(self._left, len(buffer))]
        buffer[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)


def test_a_large_file_is_never_held_in_memory():
    source = io.BufferedReader(Endless(30_000 * 1024, lines=True))
    with tempfile.TemporaryFile() as into:
        tracemalloc.start()
        try:
            told = prepare(source, into, order())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        written = into.tell()
    assert told.lines == 30_000
    assert written > 30_000 * 1024
    assert peak_bytes < 2_000_000


def test_a_line_without_an_end_is_given_up():
    source = io.BufferedReader(Endless(4 * LINE_BYTES, lines=False))
    with pytest.raises(Failure, match="line 1: it is longer than"):
        prepare(source, io.BytesIO(), order())
