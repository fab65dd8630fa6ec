from __future__ import annotations

import json

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from forebay.core.delta import TokenLogprob
from forebay.gateway.response_events import ResponseEvents
from forebay.gateway.responses_schema import Echo, Frame, WireText
from forebay.gateway.schema import WireError, wire_usage
from forebay.testing.clock import FakeClock

ECHO = Echo(
    model='quote"d\u2028',
    service_tier="default",
    text=WireText({"type": "text"}),
    truncation="auto",
    metadata={"a\u2028": "\x85"},
)
NASTY = 'a\u2028b\u2029c\x85d"\\\n\n'
LOGPROBS = [TokenLogprob("h\u2028".encode(), -0.5), TokenLogprob(b"\xc3", float("-inf"))]
STRICT = TypeAdapter(ResponseStreamEvent)


def written(**options):
    """All events of a stream, in the order in which they are rendered."""
    writer = ResponseEvents(Frame("resp_1", 5, "conv_1", ECHO), FakeClock())
    parts = [
        writer.begin(0),
        writer.content(0, NASTY),
        writer.content(0, "x", LOGPROBS),
        writer.nothing(0),
        writer.finish(0, options.get("reason", "stop")),
        writer.usage(wire_usage(1, 2)),
        writer.error(WireError("m\u2028", "server_error", None, "engine_error")),
    ]
    return writer.opening() + b"".join(parts)


def events(text):
    blocks = text.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.split("\n")[1][6:]) for block in blocks]


def test_every_event_is_one_of_openais_types():
    for event in events(written()) + events(written(reason="length")):
        STRICT.validate_json(json.dumps(event), strict=True)


def test_rule_60_events_are_numbered_in_the_order_in_which_they_leave():
    assert [event["sequence_number"] for event in events(written())] == list(range(12))


def test_rule_24_line_ends_of_unicode_are_escaped_in_every_event_of_a_response():
    for line in written().decode().splitlines():
        assert line == "" or line.startswith(("event: ", "data: {"))
    done = next(e for e in events(written()) if e["type"] == "response.output_text.done")
    assert done["text"] == NASTY + "x"


def test_what_ends_a_text_has_all_of_it_and_all_logprobs():
    found = {event["type"]: event for event in events(written())}
    part = found["response.content_part.done"]["part"]
    item = found["response.output_item.done"]["item"]
    response = found["response.completed"]["response"]
    assert part["text"] == NASTY + "x"
    assert [each["logprob"] for each in part["logprobs"]] == [-0.5, -9999.0]
    assert item["content"] == [part]
    assert response["output"] == [item]
    assert response["usage"]["total_tokens"] == 3
    assert response["conversation"] == {"id": "conv_1"}


def test_the_first_events_have_a_response_without_an_answer():
    first = events(written())[0]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)


def test_without_text_a_response_has_an_empty_one():
    writer = ResponseEvents(Frame("resp_1", 5, None, ECHO), FakeClock())
    writer.begin(0)
    writer.finish(0, "stop")
    (end,) = events(writer.usage(wire_usage(1, 0)))
    assert end["response"]["output"][0]["content"][0]["text"] == ""
