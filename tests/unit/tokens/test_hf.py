from __future__ import annotations

import asyncio
import threading

import pytest

from forebay.core.call import Message
from forebay.core.errors import Overloaded
from forebay.testing.clock import CountingIds
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.model import ModelTokens
from forebay.tokens.scripted import scripted_tokens
from forebay.tokens.settings import TokensSettings

LONG = "a long message, not seen before " * 20


class Watched:
    """A model whose encoding can be held up, and is noted with its thread."""

    def __init__(self) -> None:
        self.model: ModelTokens = scripted_tokens(CountingIds())
        self.encoded: list[tuple[list[str], bool]] = []
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        encode = self.model.encode

        def noted(texts):
            inline = threading.current_thread() is threading.main_thread()
            self.encoded.append((list(texts), inline))
            self.begun.set()
            self.gate.wait(10)
            return encode(texts)

        self.model.encode = noted  # type: ignore[method-assign]

    def texts(self) -> list[str]:
        return [text for texts, _ in self.encoded for text in texts]


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_only_what_is_new_in_a_dialogue_is_encoded(watched: Watched) -> None:
    tokens = HuggingFaceTokens({"m": watched.model})
    dialogue = [Message("system", LONG), Message("user", "one")]
    await tokens.render("m", dialogue)
    watched.encoded.clear()
    await tokens.render("m", [*dialogue, Message("assistant", "1"), Message("user", "two")])
    assert watched.texts() == ["assistant\n1", "user\ntwo"]
    tokens.close()


async def test_what_one_organisation_sent_saves_no_work_for_another(watched: Watched) -> None:
    tokens = HuggingFaceTokens({"m": watched.model})
    for scope, encoded in (("org_a", True), ("org_a", False), ("org_b", True)):
        watched.encoded.clear()
        await tokens.render("m", [Message("user", LONG)], scope=scope)
        assert (f"user\n{LONG}" in watched.texts()) is encoded
    tokens.close()


async def test_short_text_is_encoded_at_once_and_long_text_in_a_thread(watched: Watched) -> None:
    """K3."""
    tokens = HuggingFaceTokens({"m": watched.model})
    await tokens.render("m", [Message("user", "short")])
    await tokens.render("m", [Message("user", LONG)])
    assert [inline for _, inline in watched.encoded] == [True, False]
    tokens.close()


async def test_when_too_much_text_waits_more_is_refused_with_a_time_to_retry(
    watched: Watched,
) -> None:
    """K3: the queue before the threads is bounded, too; one text alone always gets in."""
    settings = TokensSettings(threads=1, waiting_characters=500)
    tokens = HuggingFaceTokens({"m": watched.model}, settings)
    watched.gate.clear()
    first = asyncio.ensure_future(tokens.render("m", [Message("user", LONG)]))
    await asyncio.to_thread(watched.begun.wait, 10)
    with pytest.raises(Overloaded) as caught:
        await tokens.render("m", [Message("user", LONG + "2")])
    assert caught.value.retry_after_seconds > 0
    watched.gate.set()
    assert len((await first).ids) > len(LONG)
    await tokens.render("m", [Message("user", LONG + "2")])
    tokens.close()


async def test_a_caller_that_leaves_frees_its_place(watched: Watched) -> None:
    settings = TokensSettings(threads=1, waiting_characters=1500)
    tokens = HuggingFaceTokens({"m": watched.model}, settings)
    watched.gate.clear()
    first, second = (
        asyncio.ensure_future(tokens.render("m", [Message("user", f"{n}{LONG}")])) for n in "12"
    )
    await asyncio.to_thread(watched.begun.wait, 10)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third = asyncio.ensure_future(tokens.render("m", [Message("user", f"3{LONG}")]))
    await asyncio.sleep(0)
    watched.gate.set()
    await asyncio.gather(first, third)
    assert not any(f"2{LONG}" in text for text in watched.texts())
    tokens.close()


async def test_the_memory_of_texts_is_bounded(watched: Watched) -> None:
    """K3."""
    settings = TokensSettings(cache_entries=3, cache_bytes=10_000_000)
    tokens = HuggingFaceTokens({"m": watched.model}, settings)
    for number in range(20):
        await tokens.render("m", [Message("user", str(number))])
    watched.encoded.clear()
    await tokens.render("m", [Message("user", "0")])
    assert "user\n0" in watched.texts()
    tokens.close()
