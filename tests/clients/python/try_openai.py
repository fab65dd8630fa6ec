"""OpenAI's own Python client."""

from __future__ import annotations

from answer import Answer
from openai import NotFoundError, OpenAI
from seen import ASK, KEY, MODEL, QUESTION, REFUSAL, UNKNOWN, URL, Seen

# configuration
client = OpenAI(base_url=URL, api_key=KEY)
# end


def chat(seen: Seen) -> None:
    """One answer, and the list of models."""
    done = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_completion_tokens=20
    )
    seen.check("chat", "Paris" in (done.choices[0].message.content or ""), value=done)
    seen.check("chat", done.usage and done.usage.total_tokens > 20, value=done.usage)
    names = [model.id for model in client.models.list()]
    seen.check("models", names, value=names)


def stream(seen: Seen) -> None:
    """Deltas, then one chunk with the usage and no choices."""
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    seen.check("stream", "Paris" in text, value=text)
    last = chunks[-1]
    seen.check("stream usage", not last.choices and last.usage, value=last)


def structured(seen: Seen) -> None:
    """`parse` fills in the class."""
    done = client.chat.completions.parse(
        model=MODEL, messages=ASK, temperature=0, max_tokens=60, response_format=Answer
    )
    seen.check("structured output", done.choices[0].message.parsed, value=done)


def several(seen: Seen) -> None:
    """`n`, the logarithms of probabilities, and a completion without a chat."""
    done = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4, n=2, logprobs=True
    )
    seen.check("n", [c.index for c in done.choices] == [0, 1], value=done)
    seen.check("logprobs", all(c.logprobs and c.logprobs.content for c in done.choices), value=done)
    begun = "The capital of France is"
    old = client.completions.create(model=MODEL, prompt=begun, max_tokens=8, temperature=0)
    seen.check("completions", "Paris" in old.choices[0].text, value=old)


def responses(seen: Seen) -> None:
    """A response, what it goes on from, and a conversation."""
    brief = {"model": MODEL, "temperature": 0, "max_output_tokens": 20}
    first = client.responses.create(input=QUESTION, **brief)
    seen.check("responses", "Paris" in first.output_text, value=first)
    seen.check("responses", client.responses.retrieve(first.id).output_text, value=first)
    second = client.responses.create(input=QUESTION, previous_response_id=first.id, **brief)
    longer = second.usage.input_tokens > first.usage.input_tokens
    seen.check("responses", longer, value=second.usage)
    with client.responses.stream(input=QUESTION, **brief) as events:
        kinds = [event.type for event in events]
    seen.check("responses stream", kinds[-1] == "response.completed", value=kinds)
    conversation = client.conversations.create()
    client.responses.create(input=QUESTION, conversation=conversation.id, **brief)
    items = client.conversations.items.list(conversation.id).data
    seen.check("conversations", len(items) == 2, value=items)


def error(seen: Seen) -> None:
    """An unknown model."""
    try:
        client.chat.completions.create(model=UNKNOWN, messages=ASK)
    except NotFoundError as failure:
        seen.check("error", failure.code == "model_not_found", value=failure)
        seen.check("error", REFUSAL in str(failure), value=failure)
    else:
        raise AssertionError("an unknown model was served")


def main() -> None:
    """Everything, in order."""
    seen = Seen("openai")
    for part in (chat, stream, structured, several, responses, error):
        part(seen)
    seen.end()


if __name__ == "__main__":
    main()
