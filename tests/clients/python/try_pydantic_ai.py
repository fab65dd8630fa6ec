"""Pydantic AI's agents, without tools."""

from __future__ import annotations

import asyncio

from answer import Answer
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from seen import KEY, QUESTION, REFUSAL, UNKNOWN, URL, Seen

# configuration
provider = OpenAIProvider(base_url=URL, api_key=KEY)
model = OpenAIChatModel("small", provider=provider)
agent = Agent(model)
# end
agent.model_settings = {"max_tokens": 60, "temperature": 0}


async def chat(seen: Seen) -> None:
    """One answer with its usage."""
    done = await agent.run(QUESTION)
    seen.check("chat", "Paris" in done.output, value=done)
    seen.check("chat", done.usage.output_tokens > 0, value=done)


async def stream(seen: Seen) -> None:
    """Deltas, then the usage."""
    async with agent.run_stream(QUESTION) as run:
        text = "".join([part async for part in run.stream_text(delta=True)])
    seen.check("stream", "Paris" in text, value=text)
    seen.check("stream usage", run.usage.output_tokens > 0, value=run.usage)


async def structured(seen: Seen) -> None:
    """The output mode that needs no tools."""
    done = await agent.run(QUESTION, output_type=NativeOutput(Answer))
    seen.check("structured output", isinstance(done.output, Answer), value=done)


async def error(seen: Seen) -> None:
    """An unknown model."""
    try:
        await agent.run(QUESTION, model=OpenAIChatModel(UNKNOWN, provider=provider))
    except ModelHTTPError as failure:
        seen.check("error", failure.status_code == 404, value=failure)
        seen.check("error", REFUSAL in str(failure.body), value=failure)
    else:
        raise AssertionError("an unknown model was served")


async def main() -> None:
    """Everything, in order."""
    seen = Seen("pydantic-ai-slim")
    for part in (chat, stream, structured, error):
        await part(seen)
    seen.end()


if __name__ == "__main__":
    asyncio.run(main())
