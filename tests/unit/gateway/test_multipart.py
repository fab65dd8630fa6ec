"""Forms as clients send them, however they are cut into pieces, and what is no form."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidRequest
from forebay.gateway.multipart import MAX_BOUNDARY_CHARACTERS, MAX_PARTS, Form, Part, boundary_of

MARK = b"frontier"
HEAD = b'--frontier\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
END = b"\r\n--frontier--\r\n"


def read(*pieces: bytes, mark: bytes = MARK) -> list[tuple[Part, bytes]]:
    """Each part with all of its bytes."""
    form, found = Form(mark), []
    for piece in pieces:
        for each in form.feed(piece):
            if isinstance(each, Part):
                found.append((each, b""))
            else:
                part, content = found.pop()
                found.append((part, content + each))
    form.end()
    return found


def part(name: str, content: bytes, *more: bytes, mark: bytes = MARK) -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"'.encode()
    return b"--" + mark + b"\r\n" + b"\r\n".join([head, *more]) + b"\r\n\r\n" + content + b"\r\n"


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=60), max_size=5),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_wherever_a_form_is_cut_its_parts_are_the_same(fields: dict[str, bytes], cuts: Any) -> None:
    """Also where bytes look like the beginning of a boundary."""
    fields = {name: content + b"\r\n--front" for name, content in fields.items()} | {"z": b""}
    whole = b"".join(part(name, content) for name, content in fields.items()) + b"--frontier--"
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert {each.name: content for each, content in read(*pieces)} == fields


def test_what_httpx_sends_is_read_with_the_names_of_its_files() -> None:
    request = httpx.Request(
        "POST",
        "http://x",
        files={"file": ("zähle.jsonl", b"{}\n", "application/jsonl")},
        data={"purpose": "batch"},
    )
    mark = boundary_of([(k.lower(), v) for k, v in request.headers.raw])
    assert dict(read(request.read(), mark=mark)) == {
        Part("purpose", None): b"batch",
        Part("file", "zähle.jsonl"): b"{}\n",
    }


def test_heads_may_have_other_headers_in_any_case() -> None:
    raw = (
        b"--frontier\r\ncontent-type: text/plain\r\n"
        b'CONTENT-DISPOSITION: form-data; filename="x"; name="a"\r\nX-Other: 1\r\n\r\nb' + END
    )
    assert read(raw) == [(Part("a", "x"), b"b")]


def test_an_empty_file_name_is_told_from_none_and_bad_bytes_in_one_are_replaced() -> None:
    raw = part("a", b"").replace(b'"a"', b'"a"; filename=""')
    raw += part("b", b"") + part("c", b"").replace(b'"c"', b'"c"; filename="\xff"')
    names = [each.file_name for each, _ in read(raw + b"--frontier--")]
    assert names == ["", None, "\ufffd"]


def test_what_comes_before_and_behind_the_form_is_nobodys() -> None:
    assert read(b"\r\n" + HEAD + b"x" + END + b"behind" * 10) == [(Part("a", None), b"x")]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [HEAD],
        [HEAD + b"x"],
        [HEAD + b"x\r\n--frontier"],
        [HEAD + b"x\r\n--frontier-"],
        [HEAD + b"x\r\n--another--"],
    ],
    ids=range(6),
)
def test_a_form_that_ends_too_early_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(InvalidRequest, match="before its last boundary") as refused:
        read(*pieces)
    assert refused.value.code == "invalid_multipart"


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"--another\r\n",
        b"--frontier\r\nContent Disposition: form-data\r\n\r\n",
        b"--frontier\r\n\r\nno head" + END,
        b"--frontier\r\nContent-Disposition: form-data\r\n\r\nno name" + END,
        b'--frontier\r\nContent-Disposition: attachment; name="a"\r\n\r\n' + END,
        b'--frontier\r\nContent-Disposition: form-data; name="' + b"a" * 5000 + b'"\r\n\r\n' + END,
        b"--frontier\r\n" + b"X: 1\r\n" * 20 + HEAD[12:] + END,
    ],
    ids=range(8),
)
def test_what_is_no_form_is_refused(raw: bytes, caplog: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(raw)
    assert refused.value.code == "invalid_multipart"
    assert "as HTTP clients make it" in refused.value.message
    assert len(refused.value.message) < 300
    assert caplog.records == [], "what a client sends wrong is not logged"


def test_a_form_has_so_many_parts_at_most() -> None:
    raw = b"".join(part(f"f{n}", b"") for n in range(MAX_PARTS))
    assert len(read(raw + b"--frontier--")) == MAX_PARTS
    with pytest.raises(InvalidRequest, match=f"more than {MAX_PARTS} parts"):
        read(raw + part("one more", b"") + b"--frontier--")


@pytest.mark.parametrize(
    ("values", "boundary"),
    [
        ([b"multipart/form-data; boundary=abc"], b"abc"),
        ([b'Multipart/Form-Data; charset=utf-8; Boundary="a b;c"'], b"a b;c"),
        ([b"multipart/form-data;boundary=" + b"x" * 70], b"x" * 70),
    ],
)
def test_the_boundary_is_read_from_the_header(values: list[bytes], boundary: bytes) -> None:
    assert boundary_of([(b"content-type", value) for value in values]) == boundary


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "''"),
        ([b"application/json"], "'application/json'"),
        ([b"multipart/mixed; boundary=a"], "multipart/mixed"),
        ([b"multipart/form-data"], "0 characters"),
        ([b"multipart/form-data; boundary="], "0 characters"),
        ([b"multipart/form-data; boundary=" + b"x" * 71], f"1 to {MAX_BOUNDARY_CHARACTERS}"),
        ([b"multipart/form-data; boundary=a"] * 2, "Content-Type is"),
        ([b"\xff" * 500], "Content-Type is"),
    ],
)
def test_a_request_without_one_is_told_what_to_send(values: list[bytes], says: str) -> None:
    with pytest.raises(InvalidRequest, match="multipart/form-data as HTTP clients") as refused:
        boundary_of([(b"content-type", value) for value in values])
    assert says in refused.value.message
    assert len(refused.value.message) < 300
    assert refused.value.code == "invalid_multipart"
