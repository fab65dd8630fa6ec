"""OpenAI's agents, on the Responses API, without tools."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    Runner,
    SQLiteSession,
    set_default_openai_client,
    set_tracing_disabled,
)
from answer import Answer
from openai import AsyncOpenAI, NotFoundError
from openai.types.responses import ResponseTextDeltaEvent
from seen import KEY, QUESTION, REFUSAL, UNKNOWN, URL, Seen

# configuration
client = AsyncOpenAI(base_url=URL, api_key=KEY)
set_default_openai_client(client, use_for_tracing=False)
set_tracing_disabled(True)
agent = Agent(name="Clerk", instructions="Answer in one short sentence.", model="small")
# end
agent.model_settings = ModelSettings(temperature=0)


async def chat(seen: Seen) -> None:
    """One answer with its usage."""
    done = await Runner.run(agent, QUESTION)
    seen.check("chat", "Paris" in done.final_output, value=done)
    seen.check("chat", done.context_wrapper.usage.output_tokens > 0, value=done)


async def stream(seen: Seen) -> None:
    """Deltas, then the usage."""
    run = Runner.run_streamed(agent, QUESTION)
    text = ""
    async for event in run.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            text += event.data.delta
    seen.check("stream", "Paris" in text, value=text)
    seen.check("stream usage", run.context_wrapper.usage.output_tokens > 0, value=run)


async def structured(seen: Seen) -> None:
    """An output type."""
    done = await Runner.run(agent.clone(output_type=Answer), QUESTION)
    seen.check("structured output", isinstance(done.final_output, Answer), value=done)


async def sessions(seen: Seen) -> None:
    """A session of the client's own, one that is a conversation here, and a chain of responses."""
    remembered = OpenAIConversationsSession(openai_client=client)
    for name, session in (("session", SQLiteSession("one")), ("conversation", remembered)):
        for number in range(2):
            await Runner.run(agent, QUESTION, session=session)
            items = await session.get_items()
            seen.check(name, len(items) == 2 * (number + 1), value=items)
    first = await Runner.run(agent, QUESTION)
    second = await Runner.run(agent, QUESTION, previous_response_id=first.last_response_id)
    before, after = (run.context_wrapper.usage.input_tokens for run in (first, second))
    seen.check("previous response", after > before, value=(before, after))


async def error(seen: Seen) -> None:
    """An unknown model."""
    try:
        await Runner.run(agent.clone(model=UNKNOWN), QUESTION)
    except NotFoundError as failure:
        seen.check("error", REFUSAL in str(failure), value=failure)
    else:
        raise AssertionError("an unknown model was served")


async def main() -> None:
    """Everything, in order."""
    seen = Seen("openai-agents")
    for part in (chat, stream, structured, sessions, error):
        await part(seen)
    seen.end()


if __name__ == "__main__":
    asyncio.run(main())
