from __future__ import annotations

import pytest

from forebay.cli.answering import Reading, Target, begin, error_message, finish, take
from forebay.cli.failure import Failure


def chunk(content: str | None, finish_reason: str | None = None) -> dict[str, object]:
    delta = {} if content is None else {"content": content}
    return {"model": "m", "choices": [{"delta": delta, "finish_reason": finish_reason}]}


def test_an_answer_is_its_pieces_and_what_they_took():
    reading = Reading(started_at=10.0)
    events = [
        (chunk(""), 10.1),
        (chunk("Par"), 10.5),
        (chunk("is"), 11.5),
        (chunk(None, "stop"), 11.6),
        ({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}, 11.7),
    ]
    assert [take(reading, event, at) for event, at in events] == ["", "Par", "is", "", ""]
    done = finish(reading)
    assert (done.text, done.model, done.finish_reason) == ("Paris", "m", "stop")
    assert (done.input_tokens, done.output_tokens) == (9, 3)
    assert done.first_token_seconds == pytest.approx(0.5)
    assert done.tokens_per_second == pytest.approx(2.0)


def test_an_empty_answer_has_no_rate():
    reading = Reading(started_at=1.0)
    take(reading, chunk(None, "stop"), 1.1)
    done = finish(reading)
    assert done.first_token_seconds is None
    assert done.tokens_per_second is None


def test_headers_tell_the_call_its_conversation_and_what_was_left_out():
    reading = Reading()
    begin(
        reading,
        {
            "x-request-id": "req_1",
            "x-forebay-conversation": "conv_1",
            "x-forebay-window": "kept=12,summarised=0,dropped=3",
        },
    )
    done = finish(reading)
    assert (done.call_id, done.conversation_id, done.dropped_turns) == ("req_1", "conv_1", 3)


@pytest.mark.parametrize("headers", [{}, {"x-forebay-window": "all"}])
def test_of_a_call_that_goes_on_from_nothing_nothing_is_left_out(headers):
    reading = Reading()
    begin(reading, headers)
    done = finish(reading)
    assert (done.call_id, done.conversation_id, done.dropped_turns) == ("", None, 0)


def test_an_error_in_the_stream_ends_the_answer_with_its_words():
    with pytest.raises(Failure, match="The engine failed"):
        take(Reading(started_at=0.0), {"error": {"message": "The engine failed."}}, 1.0)


@pytest.mark.parametrize("body", [None, [], "x", {}, {"error": None}, {"error": {"message": 5}}])
def test_a_body_without_words_has_none(body):
    assert error_message(body) == ""


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/models"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1/models"),
        ("https://host/api/openai", "https://host/api/openai/models"),
    ],
)
def test_a_url_without_a_path_means_v1(url, address):
    assert Target(url, "key").at("/models") == address


def test_the_key_is_not_in_what_is_printed_of_a_target():
    assert "secret" not in repr(Target("http://host", "secret"))
