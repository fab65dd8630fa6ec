"""A plugin of pytest for openai_python.py, in the suite's own environment; imports nothing of ours.

The suite names responses and conversations by ids of its own, but a server makes its ids itself. So
each path with such an id gets the id of one that was made for this request alone, through the API:
tests that delete take nothing from others, whatever their order. Responses are made in the background
and streamed: these can be cancelled, and read as events again. The rest of a request is as it was.
"""

from __future__ import annotations

import os
from typing import Any

from openai import OpenAI
from openai._base_client import BaseClient

MODEL = "gpt-6-astra"
RESPONSES = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id")
CONVERSATION, ITEM = "conv_123", "msg_abc"


def pytest_sessionstart() -> None:
    """Every client of the suite, whatever sends its requests, joins its paths to its base here."""
    maker = OpenAI(base_url=os.environ["TEST_API_BASE_URL"], api_key=os.environ["CONFORMANCE_KEY"])
    join = BaseClient._prepare_url

    def joined(client: Any, path: str) -> Any:
        return join(client, "/".join(there(path.split("/"), maker)))

    BaseClient._prepare_url = joined


def there(segments: list[str], maker: OpenAI) -> list[str]:
    """The same path, to something that exists."""
    ids: dict[str, str] = {}
    if CONVERSATION in segments:
        said: Any = [{"role": "user", "content": "Hello"}]
        ids[CONVERSATION] = maker.conversations.create(items=said).id
    if ITEM in segments:
        [item] = maker.conversations.items.list(ids[CONVERSATION]).data
        ids[ITEM] = str(item.id)
    for literal in set(RESPONSES) & set(segments):
        ids[literal] = response_id(maker, is_ended="cancel" not in segments)
    return [ids.get(segment, segment) for segment in segments]


def response_id(maker: OpenAI, *, is_ended: bool) -> str:
    """Of a new response; one that has not ended goes on by itself."""
    with maker.responses.create(model=MODEL, input="Hello", background=True, stream=True) as events:
        begun = next(events)
        assert begun.type == "response.created", begun
        if is_ended:
            assert [*events][-1].type == "response.completed"
    return begun.response.id
