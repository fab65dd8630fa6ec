"""Instructor in its JSON-schema mode: its default asks for tools."""

from __future__ import annotations

import instructor
from answer import Answer
from instructor.core import InstructorRetryException
from openai import NotFoundError, OpenAI
from seen import ASK, KEY, MODEL, REFUSAL, UNKNOWN, URL, Seen

# configuration
openai = OpenAI(base_url=URL, api_key=KEY)
client = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)
# end


def structured(seen: Seen) -> None:
    """An object, with the completion that it was read from."""
    done, completion = client.create_with_completion(
        model=MODEL, messages=ASK, response_model=Answer, max_tokens=60, temperature=0
    )
    seen.check("structured output", isinstance(done, Answer), value=done)
    seen.check("structured output", completion.usage.total_tokens > 20, value=completion)


def stream(seen: Seen) -> None:
    """An object that fills while it is generated."""
    parts = list(
        client.create_partial(
            model=MODEL, messages=ASK, response_model=Answer, max_tokens=60, temperature=0
        )
    )
    seen.check("stream", len(parts) > 1 and parts[-1].capital, value=parts)


def error(seen: Seen) -> None:
    """Instructor wraps what it does not retry; the cause is the error of OpenAI's client."""
    try:
        client.create(model=UNKNOWN, messages=ASK, response_model=Answer, max_retries=1)
    except (InstructorRetryException, NotFoundError) as failure:
        seen.check("error", REFUSAL in str(failure), value=failure)
    else:
        raise AssertionError("an unknown model was served")


def main() -> None:
    """Everything, in order."""
    seen = Seen("instructor")
    for part in (structured, stream, error):
        part(seen)
    seen.end()


if __name__ == "__main__":
    main()
