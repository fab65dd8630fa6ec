"""The form of an upload: what of it is the file's, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.core.errors import ForebayError, InvalidRequest, RequestTooLarge
from forebay.gateway.upload import FORM_BYTES, UploadForm
from forebay.pipeline.batches import NewFile

MARK = b"frontier"
FILE = ("file", b"{}\n", "calls.jsonl")
PURPOSE = ("purpose", b"batch")


def form(*parts: tuple[Any, ...]) -> bytes:
    """Of (name, content) and (name, content, file name)."""
    out = b""
    for name, content, *file_name in parts:
        named = f'; filename="{file_name[0]}"' if file_name else ""
        head = f'Content-Disposition: form-data; name="{name}"{named}'
        out += b"--" + MARK + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"
    return out + b"--" + MARK + b"--\r\n"


def upload(raw: bytes, *, most: int = 1000, step: int = 7) -> tuple[Any, bytes]:
    """What it asks for, and the file's bytes."""
    reading, content = UploadForm(MARK, most), b""
    for start in range(0, len(raw), step):
        content += b"".join(reading.take(raw[start : start + step]))
    return reading.end(), content


def refused(*parts: tuple[Any, ...], **options: Any) -> ForebayError:
    with pytest.raises(ForebayError) as caught:
        upload(form(*parts), **options)
    return caught.value


@pytest.mark.parametrize("parts", [(PURPOSE, FILE), (FILE, PURPOSE)])
def test_fields_may_come_before_or_behind_the_file(parts: Any) -> None:
    request, content = upload(form(*parts))
    assert request.new == NewFile("calls.jsonl", "batch", None)
    assert (request.ignored, content) == ((), b"{}\n")


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("calls.jsonl", "calls.jsonl"),
        ("/home/me/calls.jsonl", "calls.jsonl"),
        (r"C:\fakepath\calls.jsonl", "calls.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("..", ".."),
        ("zwei Wörter 😀.jsonl", "zwei Wörter 😀.jsonl"),
        ("a\tb\x7f", "a_b_"),
        ("x" * 255, "x" * 255),
    ],
)
def test_a_file_has_the_last_part_of_the_name_that_was_sent(sent: str, name: str) -> None:
    request, _ = upload(form(PURPOSE, ("file", b"x", sent)))
    assert request.new.name == name


@pytest.mark.parametrize("sent", [(), ("",), ("folder/",)])
def test_a_file_without_a_name_is_refused(sent: tuple[str, ...]) -> None:
    error = refused(PURPOSE, ("file", b"x", *sent))
    assert isinstance(error, InvalidRequest)
    assert (error.param, error.code) == ("filename", "string_below_min_length")


def test_a_name_that_is_too_long_is_refused_with_the_limit() -> None:
    error = refused(PURPOSE, ("file", b"x", "x" * 256))
    assert "256 characters" in error.message
    assert "the limit is 255" in error.message


@pytest.mark.parametrize(
    ("parts", "param", "code"),
    [
        ((PURPOSE,), "file", "missing_required_parameter"),
        ((FILE,), "purpose", "missing_required_parameter"),
        ((FILE, ("purpose", b"assistants")), "purpose", "unsupported_value"),
        ((FILE, ("purpose", b"")), "purpose", "unsupported_value"),
        ((FILE, ("purpose", b"\xff")), "purpose", "invalid_unicode"),
        ((PURPOSE, PURPOSE, FILE), "purpose", "invalid_value"),
        ((PURPOSE, FILE, FILE), "file", "invalid_value"),
    ],
    ids=range(7),
)
def test_a_form_has_one_file_and_one_purpose(parts: Any, param: str, code: str) -> None:
    error = refused(*parts)
    assert isinstance(error, InvalidRequest)
    assert (error.param, error.code) == (param, code)


def test_other_purposes_are_told_which_one_there_is() -> None:
    for purpose in (b"fine-tune", b"vision", b"user_data", b"evals", b"anything"):
        message = refused(FILE, ("purpose", purpose)).message
        assert f'purpose is "{purpose.decode()}", but only batch is supported' in message


def test_a_purpose_before_the_file_is_refused_before_the_files_bytes_come() -> None:
    raw = form(("purpose", b"vision"), FILE)
    reading = UploadForm(MARK, 1000)
    with pytest.raises(InvalidRequest, match="purpose"):
        reading.take(raw[: raw.index(b"{}")])


def test_an_empty_file_is_refused() -> None:
    error = refused(PURPOSE, ("file", b"", "calls.jsonl"))
    assert "Invalid file format: the file is empty" in error.message
    assert error.param == "file"


@pytest.mark.parametrize(
    "parts",
    [
        (("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"4545")),
        (("expires_after", json.dumps({"seconds": 4545, "anchor": "created_at"}).encode()),),
    ],
)
@pytest.mark.parametrize("behind", [True, False])
def test_how_long_a_file_is_kept_is_said_in_brackets_or_in_json(parts: Any, behind: bool) -> None:
    order = (PURPOSE, FILE, *parts) if behind else (*parts, PURPOSE, FILE)
    assert upload(form(*order))[0].new.ttl_seconds == 4545


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("expires_after[seconds]", b"3600")], "expires_after.anchor"),
        ([("expires_after[anchor]", b"created_at")], "expires_after.seconds"),
        ([("expires_after[anchor]", b"x"), ("expires_after[seconds]", b"3600")], "expires_after.anchor"),
        ([("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"3599")], "expires_after.seconds"),
        ([("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"1h")], "expires_after.seconds"),
        ([("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"9" * 40)], "expires_after.seconds"),
        ([("expires_after", b"3600")], "expires_after"),
        ([("expires_after", b"{")], "expires_after"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_time_that_is_none_is_refused_by_its_place(parts: Any, param: str) -> None:
    assert refused(PURPOSE, FILE, *parts).param == param


def test_a_file_of_just_the_most_bytes_is_taken_and_one_more_is_not() -> None:
    most = 100
    request, content = upload(form(PURPOSE, ("file", b"x" * most, "a")), most=most)
    assert (request.new.name, len(content)) == ("a", most)
    error = refused(PURPOSE, ("file", b"x" * (most + 1), "a"), most=most, step=1)
    assert isinstance(error, RequestTooLarge)
    assert "at least 101 bytes; the limit is 100 bytes" in error.message


@pytest.mark.parametrize(
    "parts",
    [
        (("other", b"x" * FORM_BYTES),),
        (("other", b"x" * FORM_BYTES, "a file, too"),),
    ],
    ids=range(2),
)
def test_no_more_is_held_of_a_form_than_its_bound(parts: Any) -> None:
    error = refused(*parts, PURPOSE, FILE, step=1000)
    assert isinstance(error, RequestTooLarge)
    assert f"more than {FORM_BYTES} bytes beside the file" in error.message


def test_fields_that_mean_nothing_are_named() -> None:
    request, _ = upload(form(("user", b"x"), PURPOSE, FILE, ("expires_after[x]", b"")))
    assert request.ignored == ("user", "expires_after[x]")
