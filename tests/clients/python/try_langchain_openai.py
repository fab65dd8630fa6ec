"""LangChain's ChatOpenAI."""

from __future__ import annotations

from answer import Answer
from langchain_openai import ChatOpenAI
from openai import NotFoundError
from seen import KEY, QUESTION, REFUSAL, UNKNOWN, URL, Seen

# configuration
model = ChatOpenAI(base_url=URL, api_key=KEY, model="small")
# end
model = model.model_copy(update={"max_tokens": 60, "temperature": 0})


def chat(seen: Seen) -> None:
    """One answer with its usage."""
    done = model.invoke(QUESTION)
    seen.check("chat", "Paris" in done.text, value=done)
    seen.check("chat", done.usage_metadata["total_tokens"] > 20, value=done)


def stream(seen: Seen) -> None:
    """Chunks that add up to the answer and its usage."""
    whole = None
    for chunk in model.stream(QUESTION, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    seen.check("stream", whole is not None and "Paris" in whole.text, value=whole)
    seen.check("stream usage", whole.usage_metadata["output_tokens"] > 0, value=whole)


def structured(seen: Seen) -> None:
    """The method that needs no tools."""
    done = model.with_structured_output(Answer, method="json_schema").invoke(QUESTION)
    seen.check("structured output", isinstance(done, Answer), value=done)


def error(seen: Seen) -> None:
    """LangChain lets the errors of OpenAI's client through."""
    try:
        model.model_copy(update={"model_name": UNKNOWN}).invoke(QUESTION)
    except NotFoundError as failure:
        seen.check("error", REFUSAL in str(failure), value=failure)
    else:
        raise AssertionError("an unknown model was served")


def main() -> None:
    """Everything, in order."""
    seen = Seen("langchain-openai")
    for part in (chat, stream, structured, error):
        part(seen)
    seen.end()


if __name__ == "__main__":
    main()
