"""OpenAI's own Python client against the real model: what users do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.request import urlopen

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.running import Server

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome"}


@pytest.fixture
def client(real: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=real.base_url, api_key=real.key, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(real: Server) -> AsyncIterator[AsyncOpenAI]:
    url, key = real.base_url, real.key
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as client:
        yield client


def ask(text: str) -> list:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("country", "capital"), CAPITALS.items())
def test_greedy_answers_name_the_capitals(client, real, country, capital):
    answer = client.chat.completions.with_raw_response.create(
        model="default",
        messages=ask(f"What is the capital of {country}?"),
        temperature=0,
        max_tokens=20,
    )
    completion = answer.parse()
    assert capital in completion.choices[0].message.content
    row = next(r for r in real.usage() if r["call_id"] == answer.headers["x-request-id"])
    assert row["model"] == "smollm2-135m-instruct"
    assert row["price_version"] >= 1
    assert row["input_tokens"] == completion.usage.prompt_tokens
    assert row["output_tokens"] == completion.usage.completion_tokens
    # 0.10 and 0.40 USD per million tokens, in nano-USD.
    expected = completion.usage.prompt_tokens * 100 + completion.usage.completion_tokens * 400
    assert row["amount_nanos"] == expected
    assert answer.headers["x-forebay-cost-usd"] == row["amount_usd"]


def test_streamed_and_not_streamed_say_the_same(client):
    question = {"model": "small", "messages": ask("Name three colours."), "temperature": 0}
    whole = client.chat.completions.create(max_tokens=40, **question)
    chunks = list(
        client.chat.completions.create(
            max_tokens=40, stream=True, stream_options={"include_usage": True}, **question
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    # Greedy output may differ once between a cold and a prefix-cached run; the first words do not.
    assert text.split()[:3] == whole.choices[0].message.content.split()[:3]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert [c.choices[0].finish_reason for c in chunks[:-1]].count("stop") <= 1
    assert len({c.id for c in chunks}) == 1


def test_the_stream_helper_accumulates(client):
    with client.chat.completions.stream(
        model="small", messages=ask("What is the capital of Italy?"), max_tokens=60, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content


async def test_async_streamed_and_not(async_client):
    whole = await async_client.chat.completions.create(
        model="small", messages=ask("What is the capital of Italy?"), temperature=0, max_tokens=20
    )
    assert "Rome" in whole.choices[0].message.content
    stream = await async_client.chat.completions.create(
        model="small",
        messages=ask("What is the capital of Italy?"),
        temperature=0,
        max_tokens=20,
        stream=True,
    )
    text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert "Rome" in text


@pytest.mark.parametrize("stop", ["Paris", "tal of Fr", ["zzz", "France is"]])
@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_ends_the_text_before_it_also_split_over_tokens(client, stop, stream):
    """E4: "tal of Fr" begins and ends inside tokens."""
    question = {
        "model": "small",
        "messages": ask("What is the capital of France?"),
        "temperature": 0,
        "max_tokens": 30,
        "stop": stop,
    }
    if stream:
        chunks = list(client.chat.completions.create(stream=True, **question))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**question).choices[0]
        text, reason = choice.message.content, choice.finish_reason
    strings = [stop] if isinstance(stop, str) else stop
    assert text.startswith("The capi")
    assert not any(string in text for string in strings)
    assert reason == "stop"


def test_a_seed_repeats_a_sampled_answer_on_an_idle_engine(client):
    def sample(seed: int) -> str:
        answer = client.chat.completions.create(
            model="small",
            messages=ask("Write a sentence about the sea."),
            temperature=1.0,
            top_p=0.95,
            seed=seed,
            max_tokens=24,
        )
        return answer.choices[0].message.content

    sample(5)  # from here on the prompt's prefix is cached the same way
    assert sample(5) == sample(5)
    assert len({sample(seed) for seed in range(6, 10)}) > 1


def test_a_length_limit_is_kept_and_said(client):
    answer = client.chat.completions.create(
        model="small", messages=ask("Count to one hundred."), max_completion_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_models_are_listed_and_found_by_alias(client):
    ids = [model.id for model in client.models.list()]
    assert ids == ["smollm2-135m-instruct"]
    assert client.models.retrieve("small").id == "smollm2-135m-instruct"


@pytest.mark.parametrize("stream", [True, False])
def test_bad_requests_raise_the_sdk_s_own_errors(client, stream):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="smal", messages=ask("hi"), stream=stream)
    assert missing.value.code == "model_not_found"
    assert "small" in missing.value.message
    assert isinstance(missing.value.body, dict)
    with urlopen(missing.value.body["doc_url"], timeout=10) as explained:
        assert explained.read().startswith(b"# model_not_found\n")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(
            model="small", messages=ask("hi"), temperature=9, stream=stream
        )
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="small", messages=ask("word " * 9000), max_tokens=64, stream=stream
        )
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in long.value.message


async def test_a_wrong_key_is_refused_async(real):
    url = real.base_url
    async with AsyncOpenAI(base_url=url, api_key="fbk_live_wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.chat.completions.create(model="small", messages=ask("hi"))
    assert refused.value.code == "invalid_api_key"


def test_characters_are_never_split(client):
    """Rule 23, E5: no replacement characters in anything the model says."""
    chunks = client.chat.completions.create(
        model="small",
        messages=ask("Répète: «été naïf» 😀🎉 こんにちは"),
        temperature=0,
        max_tokens=60,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text
    assert "�" not in text


def test_nothing_is_told_to_anybody(real, home):
    """OpenVINO's package would keep an analytics id in ~/intel and report its import with it."""
    assert real.usage() is not None
    assert list(home.iterdir()) == []
