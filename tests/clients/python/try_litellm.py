"""LiteLLM as a library."""

from __future__ import annotations

import litellm
from answer import Answer
from seen import ASK, KEY, REFUSAL, UNKNOWN, URL, Seen

# configuration
forebay = {"api_base": URL, "api_key": KEY}
model = "openai/small"
# end: litellm.completion(model=model, messages=…, **forebay)


def chat(seen: Seen) -> None:
    """One answer with its usage."""
    done = litellm.completion(model=model, messages=ASK, max_tokens=20, temperature=0, **forebay)
    seen.check("chat", "Paris" in done.choices[0].message.content, value=done)
    seen.check("chat", done.usage.total_tokens > 20, value=done)


def stream(seen: Seen) -> None:
    """Deltas, then the usage."""
    chunks = list(
        litellm.completion(
            model=model,
            messages=ASK,
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            **forebay,
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    seen.check("stream", "Paris" in text, value=text)
    used = [c.usage for c in chunks if getattr(c, "usage", None)]
    seen.check("stream usage", used and used[-1].completion_tokens > 0, value=used)


def structured(seen: Seen) -> None:
    """A class as the response format."""
    done = litellm.completion(
        model=model, messages=ASK, max_tokens=60, temperature=0, response_format=Answer, **forebay
    )
    text = done.choices[0].message.content
    seen.check("structured output", Answer.model_validate_json(text), value=text)


def error(seen: Seen) -> None:
    """An unknown model."""
    try:
        litellm.completion(model=f"openai/{UNKNOWN}", messages=ASK, **forebay)
    except litellm.NotFoundError as failure:
        seen.check("error", REFUSAL in str(failure), value=failure)
    else:
        raise AssertionError("an unknown model was served")


def main() -> None:
    """Everything, in order."""
    seen = Seen("litellm")
    for part in (chat, stream, structured, error):
        part(seen)
    seen.end()


if __name__ == "__main__":
    main()
