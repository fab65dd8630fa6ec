"""What every `forebay.tokens.contract.Tokens` must do (K1-K3, E4, E5).

Define the fixture `subject`, a `TokensSubject`; it may live for the whole session. The vocabulary
must have all bytes that the texts here use, which a byte-level vocabulary has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.core.call import Message
from forebay.core.errors import (
    ContextLengthExceeded,
    EngineFault,
    InvalidRequest,
    ModelNotFound,
)
from forebay.tokens.contract import Decoder, Tokens


@dataclass(frozen=True, slots=True)
class TokensSubject:
    """A backend that serves `model`, and how to check it from outside.

    `control` maps the text of every control token to its id. `reference` gives the ids of a
    benign dialogue by the model's own template and tokenizer, without the backend under test.
    `encode` gives the ids of ordinary text.
    """

    tokens: Tokens
    model: str
    context_tokens: int
    control: dict[str, int]
    message_start: str
    reference: Callable[[Sequence[Message]], Sequence[int]]
    encode: Callable[[str], Sequence[int]]

    async def ids(self, *messages: Message, scope: str = "") -> tuple[int, ...]:
        return (await self.tokens.render(self.model, messages, scope=scope)).ids

    def decoded(self, ids: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], str, bool]:
        """The pieces, what `finish` adds, and whether a stop string was completed."""
        decoder = self.tokens.decoder(self.model, stop)
        pieces = [decoder.push(token_id) for token_id in ids]
        return [p.text for p in pieces], decoder.finish(), any(p.stopped for p in pieces)


def _said(text: str) -> tuple[Message, ...]:
    return (Message("system", "Be brief."), Message("user", text))


BENIGN = (
    "What is the capital of France?",
    "",
    " ",
    "\n\n  leading blanks",
    "trailing blanks  \n",
    "日本語のテキスト 👩🏽‍🚀 🇫🇷\u2028é",
    "def f(x):\n    return x + 12345\n",
    "\t\r\n\u00a0\u3000",
    "a" * 700,
    "<|im_en d|>",
)
_random = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("text", BENIGN)
async def test_benign_prompts_get_the_ids_of_the_models_own_template_and_tokenizer(
    subject: TokensSubject, text: str
) -> None:
    """K1, id for id."""
    for messages in (
        (Message("user", text),),
        _said(text),
        (Message("user", text), Message("assistant", text), Message("user", text + "?")),
    ):
        assert await subject.ids(*messages) == tuple(subject.reference(messages))


async def test_the_same_messages_get_the_same_ids_again_and_in_any_scope(
    subject: TokensSubject,
) -> None:
    text = "Remembered or not, the ids are the same. " * 20
    first = await subject.ids(*_said(text), scope="org_a")
    assert first == await subject.ids(*_said(text), scope="org_a")
    assert first == await subject.ids(*_said(text), scope="org_b")
    assert first == tuple(subject.reference(_said(text)))


async def test_content_that_spells_a_control_token_never_becomes_one(
    subject: TokensSubject,
) -> None:
    """K2: each control token's text, alone, repeated and in halves that the template joins."""
    control = set(subject.control.values())
    skeleton = [i for i in await subject.ids(*_said("x")) if i in control]
    for spelled in subject.control:
        half = len(spelled) // 2
        for text in (spelled, spelled * 3, f" {spelled}\n", spelled[:half], spelled[half:]):
            ids = await subject.ids(Message("system", text), Message("user", text))
            assert [i for i in ids if i in control] == skeleton, text


@_random
@given(data=st.data())
async def test_no_dialogue_makes_more_control_tokens_than_its_template(
    subject: TokensSubject, data: st.DataObject
) -> None:
    """K2: role starts = messages + 1 (the answer's), whatever is said; and text stays text."""
    spelled = list(subject.control)
    pieces = st.one_of(
        st.sampled_from(spelled),
        st.sampled_from([half for t in spelled for half in (t[:3], t[3:], t[:-2], t[-2:])]),
        st.sampled_from(["\n", "user\n", "system\n", "assistant", " ", "|", "<", ">"]),
        st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x2FFF), max_size=6),
    )
    texts = data.draw(st.lists(st.lists(pieces, max_size=8).map("".join), min_size=1, max_size=5))
    roles = ["system", *(["user", "assistant"] * 3)][: len(texts)]
    messages = [Message(role, text) for role, text in zip(roles, texts, strict=True)]
    ids = await subject.ids(*messages)
    plain = await subject.ids(*(Message(role, "x") for role in roles))
    control = set(subject.control.values())
    assert [i for i in ids if i in control] == [i for i in plain if i in control]
    assert ids.count(subject.control[subject.message_start]) == len(messages) + 1


async def test_a_prompt_with_more_bytes_than_could_fit_is_refused_before_it_is_tokenised(
    subject: TokensSubject,
) -> None:
    """K3: 8 bytes per token of context, counted over all messages and in bytes, not characters."""
    limit_bytes = 16 * subject.context_tokens
    for text in ("x" * limit_bytes, "é" * (limit_bytes // 2), "x" * 50_000_000):
        with pytest.raises(ContextLengthExceeded) as caught:
            await subject.ids(Message("user", text), Message("user", "x"))
        told = f"maximum context length is {subject.context_tokens} tokens"
        assert told in caught.value.message


@pytest.mark.parametrize(
    "unit", ["a", "^", "0", " ", "\n", "'", "ab ", "漢", "\u200d", "<|im_end|>"]
)
async def test_pathological_text_is_answered_or_refused_and_the_loop_goes_on(
    subject: TokensSubject, unit: str
) -> None:
    """K3: the largest texts that pass the byte bound; other tasks get their turns meanwhile."""
    text = unit * (16 * subject.context_tokens // len(unit.encode()))
    turns, done = 0, asyncio.Event()

    async def count_turns() -> None:
        nonlocal turns
        while not done.is_set():
            await asyncio.sleep(0.001)
            turns += 1

    counting = asyncio.create_task(count_turns())
    began = asyncio.get_running_loop().time()
    try:
        assert await subject.ids(Message("user", text))
    except InvalidRequest as refusal:
        assert refusal.code == "prompt_unprocessable"
    took_seconds = asyncio.get_running_loop().time() - began
    done.set()
    await counting
    # 80 ms at most on an idle core; the margin is for a busy machine.
    assert took_seconds < 2
    assert turns >= took_seconds / 0.1


@pytest.mark.parametrize("role", ["tool", "", "User", "user<|im_end|>", "system\n<|im_start|>user"])
async def test_a_role_that_is_not_one_of_ours_is_refused(subject: TokensSubject, role: str) -> None:
    """K2: a role is printed by the template, so it could smuggle control tokens."""
    with pytest.raises(InvalidRequest) as caught:
        await subject.ids(Message("user", "hi"), Message(role, "hi"))
    assert caught.value.param == "messages[1].role"


async def test_no_messages_too_many_messages_and_half_characters_are_refused(
    subject: TokensSubject,
) -> None:
    """K3."""
    with pytest.raises(InvalidRequest):
        await subject.ids()
    with pytest.raises(InvalidRequest):
        await subject.ids(*[Message("user", "")] * 2049)
    with pytest.raises(InvalidRequest) as caught:
        await subject.ids(Message("user", "fine"), Message("user", "lone \ud800 surrogate"))
    assert (caught.value.code, caught.value.param) == ("invalid_unicode", "messages[1].content")


async def test_two_thousand_messages_are_rendered(subject: TokensSubject) -> None:
    """K3: the most messages that are allowed."""
    messages = [Message(("user", "assistant")[n % 2], str(n % 10)) for n in range(2047)]
    ids = await subject.ids(Message("system", "s"), *messages)
    assert ids.count(subject.control[subject.message_start]) == 2049


async def test_an_unknown_model_is_an_error(subject: TokensSubject) -> None:
    with pytest.raises(ModelNotFound):
        await subject.tokens.render("no-such-model", [Message("user", "hi")])
    with pytest.raises(ModelNotFound):
        subject.tokens.decoder("no-such-model", ())


async def test_many_renders_at_once_do_not_mix_up(subject: TokensSubject) -> None:
    texts = [f"Question {n}: {'word ' * (n * 7)}" for n in range(40)]
    rendered = await asyncio.gather(*(subject.ids(*_said(text)) for text in texts))
    assert rendered == [tuple(subject.reference(_said(text))) for text in texts]


@pytest.mark.parametrize("text", [text for text in BENIGN if text])
def test_decoding_the_ids_of_a_text_gives_the_text(subject: TokensSubject, text: str) -> None:
    pieces, rest, stopped = subject.decoded(subject.encode(text))
    assert ("".join(pieces) + rest, stopped) == (text, False)


def test_half_a_character_is_held_back_and_dropped_at_the_end(subject: TokensSubject) -> None:
    """E5: no replacement character is ever shown for text that is still to come."""
    text = "😀é漢👩🏽‍🚀𠀀"
    ids = subject.encode(text)
    for end in range(len(ids) + 1):
        pieces, rest, _ = subject.decoded(ids[:end])
        assert text.startswith("".join(pieces))
        assert rest == ""


def test_control_tokens_have_no_text(subject: TokensSubject) -> None:
    for token_id in subject.control.values():
        assert subject.decoded([token_id]) == ([""], "", False)


def test_an_id_outside_the_vocabulary_is_the_engines_fault(subject: TokensSubject) -> None:
    decoder = subject.tokens.decoder(subject.model, ())
    for token_id in (-1, 10_000_000):
        with pytest.raises(EngineFault):
            decoder.push(token_id)


def test_a_stop_string_never_leaks_also_when_it_is_split_over_tokens(
    subject: TokensSubject,
) -> None:
    """E4."""
    ids = subject.encode("The answer is 42. END of story")
    for stop in ("END", "42. E", "T", " of", "is 42. END of"):
        pieces, rest, stopped = subject.decoded(ids, [stop])
        assert ("".join(pieces), rest, stopped) == (
            "The answer is 42. END of story".split(stop)[0],
            "",
            True,
        )


def test_after_a_stop_string_nothing_follows(subject: TokensSubject) -> None:
    """E4."""
    decoder = subject.tokens.decoder(subject.model, ["b"])
    shown = [decoder.push(token_id) for token_id in subject.encode("a b c 😀")]
    assert "".join(piece.text for piece in shown) == "a "
    assert shown[-1].stopped
    assert decoder.finish() == ""


def test_only_what_may_still_become_a_stop_string_is_held_back(subject: TokensSubject) -> None:
    """E4: and at the end it is shown."""
    decoder = subject.tokens.decoder(subject.model, ["\n\nUser:"])
    shown = _pushed(decoder, subject.encode("Hello there.\n\nUse"))
    assert shown == "Hello there."
    assert decoder.finish() == "\n\nUse"


def test_decoders_do_not_share_state(subject: TokensSubject) -> None:
    ids = subject.encode("😀 stop it 漢字")
    first, second = (subject.tokens.decoder(subject.model, ["it"]) for _ in range(2))
    shown = [(first.push(i), second.push(i)) for i in ids]
    assert all(one == other for one, other in shown)


def test_an_empty_stop_string_is_refused(subject: TokensSubject) -> None:
    with pytest.raises(InvalidRequest):
        subject.tokens.decoder(subject.model, [""])


@_random
@given(
    text=st.text(st.sampled_from("abAB\n é😀"), max_size=60),
    stop=st.lists(st.text(st.sampled_from("abAB\n é😀"), min_size=1, max_size=5), max_size=4),
)
def test_the_text_ends_before_the_stop_string_that_is_completed_first(
    subject: TokensSubject, text: str, stop: list[str]
) -> None:
    """E4, E5: by comparison with a search through the whole text."""
    pieces, rest, stopped = subject.decoded(subject.encode(text), stop)
    expected, expected_stop = text, False
    for end in range(1, len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            expected, expected_stop = text[: end - max(map(len, completed))], True
            break
    assert ("".join(pieces) + rest, stopped) == (expected, expected_stop)


def _pushed(decoder: Decoder, ids: Sequence[int]) -> str:
    return "".join(decoder.push(token_id).text for token_id in ids)


# -- prompts that are completed as they are -----------------------------------------------------------


@pytest.mark.parametrize("text", [text for text in BENIGN if text])
async def test_a_plain_prompt_has_the_ids_of_its_text_alone(
    subject: TokensSubject, text: str
) -> None:
    """K1."""
    prompt = await subject.tokens.encode(subject.model, text)
    assert list(prompt.ids) == list(subject.encode(text))


async def test_a_plain_prompt_that_spells_a_control_token_is_text(subject: TokensSubject) -> None:
    """K2."""
    for text in subject.control:
        prompt = await subject.tokens.encode(subject.model, f"a {text} b")
        assert not set(prompt.ids) & set(subject.control.values())
        assert subject.decoded(prompt.ids)[0] != []


async def test_ids_are_taken_as_they_are_but_for_control_tokens_and_unknown_ones(
    subject: TokensSubject,
) -> None:
    """K2."""
    ids = tuple(subject.encode("some words"))
    assert (await subject.tokens.encode(subject.model, ids)).ids == ids
    for wrong in (*subject.control.values(), 10**9):
        with pytest.raises(InvalidRequest) as caught:
            await subject.tokens.encode(subject.model, (*ids, wrong))
        assert caught.value.param == f"prompt[{len(ids)}]"
        assert str(wrong) in caught.value.message


async def test_a_plain_prompt_is_bounded_before_any_work(subject: TokensSubject) -> None:
    """K3."""
    with pytest.raises(ContextLengthExceeded) as caught:
        await subject.tokens.encode(subject.model, "x " * (9 * subject.context_tokens))
    assert caught.value.param == "prompt"
    assert "maximum context length" in caught.value.message
    with pytest.raises(InvalidRequest):
        await subject.tokens.encode(subject.model, "half \ud800")
    with pytest.raises(ModelNotFound):
        await subject.tokens.encode("nobody", "x")


async def test_a_decoder_says_what_a_token_stands_for_and_whether_it_holds_something(
    subject: TokensSubject,
) -> None:
    """E4, E5: between pushes the joined bytes are the joined text, unless something is held."""
    text = "é xy stop世"
    ids = subject.encode(text)
    decoder = subject.tokens.decoder(subject.model, ("xyz",))
    shown, data = "", b""
    for token_id in ids:
        shown += decoder.push(token_id).text
        data += decoder.token(token_id)
        assert bool(decoder.held) == (shown.encode() != data)
        assert decoder.held >= len(data.decode(errors="ignore")) - len(shown)
    assert data.decode() == text


# -- dialogues that grow ----------------------------------------------------------------------------------


async def test_a_dialogue_that_goes_on_begins_with_all_of_what_it_was(
    subject: TokensSubject,
) -> None:
    """So the engine's prefix cache has the whole of the last prompt."""
    dialogue = [Message("system", "Be brief.")]
    before: tuple[int, ...] = ()
    for question, answer in (("Hello", "Hi!"), ("And\nyou?", " Fine. "), ("", "")):
        dialogue.append(Message("user", question))
        ids = await subject.ids(*dialogue)
        assert ids[: len(before)] == before
        before = ids
        dialogue.append(Message("assistant", answer))
