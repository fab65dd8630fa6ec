from __future__ import annotations

import re
from pathlib import Path

from forebay.core.job import Sampling
from forebay.gateway.app import build_public
from forebay.gateway.chat_fields import CHAT_FIELDS
from forebay.gateway.compatibility import ENDPOINTS, markdown
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.responses_fields import RESPONSES_FIELDS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"


def test_the_reference_page_says_what_happens_to_too_large_a_maximum_and_to_headers():
    page = " ".join(markdown().split())
    assert "is lowered to that, not refused" in page
    assert "the `finish_reason` `length`" in page


def test_the_reference_page_is_the_tables():
    assert REFERENCE.read_text() == markdown()
    for name in (*CHAT_FIELDS, *COMPLETION_FIELDS, *RESPONSES_FIELDS):
        assert f"| `{name}` |" in markdown()


async def test_the_page_names_the_endpoints_that_there_are(gateway):
    app = build_public(gateway.services, gateway.settings)
    api = [route for route in app.routes if route.path.startswith("/v1/")]
    named = {(*name.split(),) for name in ENDPOINTS}
    assert {path for _, path in named} == {r.path.replace(":path}", "}") for r in api}
    for route in api:
        assert (route.endpoint.methods[0], route.path.replace(":path}", "}")) in named


def test_e8_the_page_says_which_calls_are_continued():
    """Each row of the table against the code that decides."""
    rows = dict(re.findall(r"^\| (.*?) \| (yes|no)\b.*\|$", markdown(), re.MULTILINE))
    calls = {
        "greedy, or sampled without a `seed`": Sampling(temperature=0, seed=1),
        "`seed` with a temperature above 0": Sampling(temperature=0.5, seed=1),
        "`response_format` with JSON": Sampling(json_schema="{}"),
        "`logprobs`": Sampling(logprobs=True),
    }
    for row, sampling in calls.items():
        assert rows[row] == ("yes" if sampling.resumable else "no"), row
    for penalty in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert not Sampling(**{penalty: 1.5}).resumable
        assert any(f"`{penalty}`" in row and answer == "no" for row, answer in rows.items())
    assert Sampling().resumable
