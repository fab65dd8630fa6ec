from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from forebay.admission import AdmissionSettings
from forebay.admission.memory import MemoryAdmission
from forebay.catalog.choose import require_lane
from forebay.core import errors, json_schema
from forebay.core.errors import (
    BatchConflict,
    ConversationLocked,
    ForebayError,
    IdempotencyKeyInUse,
    InsufficientQuota,
    InternalError,
    InvalidRequest,
    LeaseLost,
    ModelNotFound,
    NotAllowed,
    Overloaded,
    RateLimited,
    Signal,
    StoreUnavailable,
)
from forebay.core.job import Lane
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.gateway import (
    batch_request,
    body,
    chat_request,
    completion_request,
    continued,
    expires_after,
    health,
    inflate,
    items,
    multipart,
    protocol,
    read,
    request,
    response_format,
    responses_request,
    stored_responses,
    unserved,
    upload,
)
from forebay.gateway.errors import (
    INVALID_REQUEST_CODES,
    NOT_ALLOWED_CODES,
    OTHER_ANSWERS,
    TABLE,
    doc_url,
    refusal,
)
from forebay.gateway.schema import ErrorAnswer
from forebay.tenancy.keys import make_key
from forebay.tenancy.keys import refusal as refused_key
from forebay.testing.clock import CountingIds, FakeClock

SOURCE = Path(__file__).parents[3] / "src" / "forebay"
CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ForebayError) and not issubclass(kind, Signal)
]
LEAVES = [kind for kind in CLASSES if not kind.__subclasses__() or kind in TABLE]


def make(kind: type[ForebayError]) -> ForebayError:
    return kind(retry_after_seconds=1.5) if issubclass(kind, RateLimited) else kind()


def test_every_leaf_outside_signal_stands_in_the_table():
    leaves = {kind for kind in CLASSES if not kind.__subclasses__()}
    assert leaves - set(TABLE) == set()
    assert not any(issubclass(kind, Signal) for kind in TABLE)


@pytest.mark.parametrize("kind", sorted(TABLE, key=lambda kind: kind.__name__))
def test_rule_47_an_error_is_under_error_with_four_keys_and_a_code_of_text(kind, golden):
    seen = refusal(make(kind), "req_1")
    lines = [f"HTTP {seen.status}"]
    lines += [f"{name.decode()}: {value.decode()}" for name, value in seen.headers]
    lines += ["", msgspec.json.encode(ErrorAnswer(seen.body)).decode(), ""]
    golden(f"errors/{kind.__name__}.http", "\n".join(lines).encode())
    assert isinstance(seen.body.code, str)
    assert seen.body.code


def test_rule_48_no_error_has_a_status_of_success():
    assert all(400 <= row.status <= 599 for row in TABLE.values())


@pytest.mark.parametrize("kind", [k for k, row in TABLE.items() if row.status in (429, 503)])
def test_rule_49_429_and_503_say_when_to_come_back_or_not_to(kind):
    headers = dict(refusal(make(kind), "req_1").headers)
    waits = b"retry-after" in headers and b"retry-after-ms" in headers
    assert waits != (headers.get(b"x-should-retry") == b"false")
    assert waits or kind is InsufficientQuota


def test_rule_49_waiting_times_are_rounded_up_and_never_zero():
    def header(seconds):
        headers = dict(refusal(RateLimited(retry_after_seconds=seconds), "r").headers)
        return headers[b"retry-after"], headers[b"retry-after-ms"]

    assert header(1.5) == (b"2", b"1500")
    assert header(0.0) == (b"1", b"1")
    assert header(0.0004) == (b"1", b"1")


def test_where_waiting_does_not_help_clients_are_told_not_to_retry():
    for error in (InsufficientQuota(), RateLimited(retry_after_seconds=None)):
        headers = dict(refusal(error, "r").headers)
        assert headers == {b"x-should-retry": b"false"}


def test_rule_57_the_request_id_is_in_the_text():
    assert "(request id: req_7)" in refusal(InternalError(), "req_7").body.message


def test_rule_59_a_409_says_when_the_conflict_is_gone_or_that_it_stays():
    conflicts = [kind for kind, row in TABLE.items() if row.status == 409]
    assert conflicts == [IdempotencyKeyInUse, ConversationLocked, BatchConflict]
    headers = [dict(refusal(make(kind), "r").headers) for kind in conflicts]
    assert [each.get(b"retry-after") for each in headers] == [b"1", b"4", None]
    assert [each.get(b"x-should-retry") for each in headers] == [None, None, b"false"]


def test_an_error_brings_its_own_code_and_path_where_it_has_one():
    seen = refusal(InvalidRequest("x", param="messages[0]", code="invalid_type"), "r")
    assert (seen.body.code, seen.body.param) == ("invalid_type", "messages[0]")
    assert refusal(NotAllowed(code="lane_not_allowed"), "r").body.code == "lane_not_allowed"
    assert refusal(ModelNotFound(), "r").body.param == "model"


def test_a_signal_never_shows_itself():
    seen = refusal(LeaseLost("fence 7 of job x"), "r")
    assert seen.status == 500
    assert "fence" not in seen.body.message


def test_a_kind_of_a_known_error_looks_like_it():
    class Busy(Overloaded):
        """Very."""

    assert refusal(Busy(), "r").status == 503
    assert refusal(StoreUnavailable(), "r").status == 503


# Where InvalidRequest is raised with a code of its own.
MODULES = (
    body, inflate, read, request, chat_request, completion_request, response_format, unserved,
    json_schema, continued, items, responses_request, stored_responses,
    multipart, upload, expires_after, batch_request,
)  # fmt: skip


def test_every_code_of_an_invalid_request_is_documented():
    source = "".join(map(inspect.getsource, MODULES))
    used = set(re.findall(r'code="(\w+)"', source)) | set(
        re.findall(r'code="\w+" if .* else "(\w+)"', source)
    )
    used -= {"{number}_{side}_value"}
    used |= {"previous_response_not_found"}  # the pipeline's
    used |= {
        f"{kind}_{side}_value"
        for kind in ("integer", "decimal")
        for side in ("below_min", "above_max")
    }
    assert used == set(INVALID_REQUEST_CODES)


def test_every_code_of_a_refused_permission_is_documented():
    used = {"not_allowed"}
    for path in SOURCE.rglob("*.py"):
        used |= set(re.findall(r'\bNotAllowed\([^)]*?code="(\w+)"', path.read_text()))
    assert used == set(NOT_ALLOWED_CODES)


def test_answers_that_no_error_class_stands_for_are_documented_as_they_are_sent():
    source = inspect.getsource(protocol) + inspect.getsource(health)
    sent = set(re.findall(r'\b([45]\d\d),\s*"(\w+)"', source))
    sent |= {("503", code) for code in re.findall(r'code="(\w+)"', source)}
    assert sent == {(str(status), code) for status, code, *_ in OTHER_ANSWERS}


def test_the_bounds_of_a_body_are_documented():
    meaning = INVALID_REQUEST_CODES["invalid_json"]
    assert f"{body.MAX_DEPTH} levels" in meaning
    assert f"{body.MAX_VALUES:,} values" in meaning


async def test_a_limit_of_one_call_is_singular():
    admission = MemoryAdmission(AdmissionSettings(), FakeClock(), CountingIds())
    for limit, says in ((1, "may make 1 call a minute"), (2, "may make 2 calls a minute")):
        who = Principal(
            Scopes("o", "p", f"key_{limit}"), 1, frozenset(), key_limits=RateLimits(limit)
        )
        for _ in range(limit):
            await admission.knock(who)
        with pytest.raises(RateLimited, match=says):
            await admission.knock(who)


def test_who_may_not_use_a_lane_is_told_how_to_get_it():
    who = Principal(Scopes("o", "p", "k"), 1, frozenset({Lane.INTERACTIVE, Lane.BATCH}))
    with pytest.raises(NotAllowed) as caught:
        require_lane(who, Lane.PREMIUM)
    assert "Its lanes: interactive, batch." in caught.value.message
    assert "plan of the key's organisation" in caught.value.message
    assert "a plan and a key that have premium" in caught.value.message


@pytest.mark.parametrize("secret", ["sk-abc", "fbk_wrong", "abc", "", "fbk_live_short"])
def test_what_is_no_key_of_ours_is_called_that(secret):
    seen = refusal(refused_key(secret), "r")
    assert (seen.status, seen.body.code) == (401, "invalid_api_key")
    assert "this is not a Forebay key. Those begin with 'fbk_live'" in seen.body.message
    assert "revoked" not in seen.body.message
    assert not secret or secret not in seen.body.message


def test_a_key_that_looks_like_ours_is_unknown_expired_or_revoked():
    seen = refusal(refused_key(make_key(CountingIds())), "r")
    assert (seen.status, seen.body.code) == (401, "invalid_api_key")
    assert "It is unknown, expired or revoked" in seen.body.message
    assert "not a Forebay key" not in seen.body.message


def test_where_the_address_is_known_an_error_links_to_its_explanation():
    seen = refusal(RateLimited(retry_after_seconds=1.0), "r", "https://llm.example.org")
    link = "https://llm.example.org/docs/errors/rate_limit_exceeded"
    assert msgspec.json.decode(msgspec.json.encode(seen.body))["doc_url"] == link
    assert doc_url("https://example.org/llm/", "x") == "https://example.org/llm/docs/errors/x"


def test_where_it_is_not_known_there_is_no_such_key():
    assert b"doc_url" not in msgspec.json.encode(refusal(InternalError(), "r").body)
