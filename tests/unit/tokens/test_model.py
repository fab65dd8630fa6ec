from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import tokenizers

from forebay.core.call import Message
from forebay.core.errors import InvalidRequest
from forebay.testing.clock import CountingIds
from forebay.tokens.model import (
    META_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    Meta,
    ModelTokens,
    Vocabulary,
    byte_alphabet,
)
from forebay.tokens.program import UnsupportedModel

TEMPLATE = "{% for m in messages %}<|s|>{{ m.content }}<|e|>{% endfor %}<|s|>"
CONTROL = {"<|s|>": 256, "<|e|>": 257}
META = Meta(1, 1, 1, "smollm", CONTROL, (257,), "<|s|>", "<|e|>", 258, 4096)


def byte_tokenizer(merges: tuple[tuple[str, str], ...] = ()) -> tokenizers.Tokenizer:
    vocabulary = byte_alphabet() | CONTROL
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    made.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in CONTROL])
    return made


def model(tokenizer: tokenizers.Tokenizer) -> ModelTokens:
    return ModelTokens(
        tokenizer,
        Vocabulary(CONTROL, (257,)),
        chat_template=TEMPLATE,
        context_tokens=100,
        ids=CountingIds(),
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / TOKENIZER_FILE).write_text(byte_tokenizer().to_str())
    (tmp_path / TEMPLATE_FILE).write_text(TEMPLATE)
    (tmp_path / META_FILE).write_bytes(msgspec.json.encode(META))
    return tmp_path


def test_what_was_converted_is_loaded(directory: Path) -> None:
    tokens = ModelTokens.load(directory, ids=CountingIds())
    assert (tokens.context_tokens, tokens.eos_ids, tokens.vocabulary_size) == (4096, (257,), 258)
    assert tokens.encode(["<|s|>"]) == [tuple(b"<|s|>")]


def test_context_and_template_may_be_set_by_the_operator(directory: Path) -> None:
    (directory / TEMPLATE_FILE).unlink()
    tokens = ModelTokens.load(
        directory, ids=CountingIds(), context_tokens=64, chat_template=TEMPLATE
    )
    assert tokens.context_tokens == 64
    with pytest.raises(UnsupportedModel, match="made for 4096"):
        ModelTokens.load(directory, ids=CountingIds(), context_tokens=8192, chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (TEMPLATE_FILE, "no chat template"),
        (TOKENIZER_FILE, "damaged"),
        (META_FILE, "no converted tokenizer"),
    ],
)
def test_a_missing_file_is_named(directory: Path, file: str, told: str) -> None:
    (directory / file).unlink()
    with pytest.raises(UnsupportedModel, match=told):
        ModelTokens.load(directory, ids=CountingIds())


@pytest.mark.parametrize("file", [TOKENIZER_FILE, META_FILE])
def test_a_damaged_file_is_an_error_and_not_a_crash(directory: Path, file: str) -> None:
    (directory / file).write_text('{"half": ')
    with pytest.raises(UnsupportedModel, match="damaged"):
        ModelTokens.load(directory, ids=CountingIds())


def test_a_vocabulary_whose_text_makes_control_tokens_is_refused() -> None:
    """K2: here the bytes of `<|s|>` would merge into the control token itself."""
    vocabulary = byte_alphabet() | CONTROL | {"<|": 258, "<|s": 259, "|>": 260}
    merges = [("<", "|"), ("<|", "s"), ("|", ">"), ("<|s", "|>")]
    forged = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    forged.pre_tokenizer = byte_tokenizer().pre_tokenizer
    with pytest.raises(UnsupportedModel, match="encodes to a control token"):
        model(forged)


def test_a_vocabulary_that_is_not_of_bytes_is_refused() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"▁a": 0, **CONTROL}, merges=[]))
    with pytest.raises(UnsupportedModel, match="▁a"):
        model(made)


@pytest.mark.parametrize("text", ["a" * 65_536, " " * 70_000, "ok " * 30_000 + "x" * 65_536])
def test_a_word_beyond_the_bound_is_refused(text: str) -> None:
    """K3."""
    with pytest.raises(InvalidRequest) as caught:
        model(byte_tokenizer()).encode([text])
    assert caught.value.code == "prompt_unprocessable"


def test_long_text_of_words_below_the_bound_is_encoded() -> None:
    text = ("a" * 65_535 + " ") * 2
    assert model(byte_tokenizer()).encode([text]) == [tuple(text.encode())]


class Panic(BaseException):
    """What the library raises when its Rust code panics is not an Exception either."""


class PanickingTokenizer:
    encode_special_tokens = False

    def get_vocab(self) -> dict[str, int]:
        return byte_alphabet() | CONTROL

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list:
        if texts == ["boom"]:
            raise Panic
        return byte_tokenizer().encode_batch_fast(["-"] * len(texts))


def test_a_panic_of_the_library_is_the_callers_error() -> None:
    """K3: it must not end the process."""
    with pytest.raises(InvalidRequest) as caught:
        model(PanickingTokenizer()).encode(["boom"])
    assert caught.value.code == "prompt_unprocessable"


def test_text_that_came_out_as_a_control_token_would_be_refused() -> None:
    """K2, the second lock: a tokenizer that parses special tokens after all."""
    tokenizer = byte_tokenizer()
    tokens = model(tokenizer)
    tokenizer.encode_special_tokens = False
    with pytest.raises(InvalidRequest) as caught:
        tokens.encode(["hello <|e|>"])
    assert caught.value.code == "prompt_unprocessable"


# (One that leaves the system's text out without a word is refused when it is loaded.)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}<|s|>{{ m.role }} {{ m.content }}<|e|>{% endfor %}<|s|>"
)


def test_rule_33_without_a_system_role_its_text_begins_the_first_user_message() -> None:
    tokens = ModelTokens(
        byte_tokenizer(),
        Vocabulary(CONTROL, (257,)),
        chat_template=NO_SYSTEM,
        context_tokens=100,
        ids=CountingIds(),
    )
    user = Message("user", "Hi")
    folded = tokens.pieces([Message("system", "Be brief."), user])
    assert folded == [256, "user Be brief.\n\nHi", 257, 256]
    assert tokens.pieces([user]) == [256, "user Hi", 257, 256]
    with pytest.raises(InvalidRequest):
        tokens.pieces([user, Message("system", "later")])
    with pytest.raises(InvalidRequest):
        tokens.pieces([Message("system", "alone")])
