"""On small GGUF files written here; the default model's is converted in the contract tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import msgspec
import numpy
import pytest

from forebay.testing.clock import CountingIds
from forebay.tokens import convert as room
from forebay.tokens.convert import convert
from forebay.tokens.model import (
    META_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    ModelTokens,
    byte_alphabet,
)
from forebay.tokens.program import UnsupportedModel

TEMPLATE = "{% for m in messages %}<|s|>{{ m.content }}<|e|>{% endfor %}<|s|>"
TOKENS = ["<|s|>", "<|e|>", "<think>", *byte_alphabet(), "Ġa", "12"]
KINDS = [3, 3, 4, *[1] * 256, 1, 1]
FIELDS: dict[str, object] = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": TOKENS,
    "kinds": KINDS,
    "merges": ["Ġ a", "1 2"],
    "bos": 0,
    "eos": 1,
    "template": TEMPLATE,
    "context": 512,
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_gguf(**changes: object) -> Path:
        fields = FIELDS | changes
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if fields["context"]:
            writer.add_context_length(fields["context"])
        writer.add_tokenizer_model(fields["model"])
        writer.add_tokenizer_pre(fields["pre"])
        writer.add_token_list(fields["tokens"])
        writer.add_token_types(fields["kinds"])
        writer.add_token_merges(fields["merges"])
        writer.add_bos_token_id(fields["bos"])
        if fields["eos"] is not None:
            writer.add_eos_token_id(fields["eos"])
        if fields["template"]:
            writer.add_chat_template(fields["template"])
        writer.add_tensor("t", numpy.zeros((1, 1), dtype=numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write_gguf


def test_a_file_is_converted_once_and_can_be_loaded(write: Write, tmp_path: Path) -> None:
    weights, directory = write(), tmp_path / "out" / "tokens"
    assert convert(weights, directory) is True
    assert convert(weights, directory) is False
    assert {p.name for p in directory.iterdir()} == {META_FILE, TEMPLATE_FILE, TOKENIZER_FILE}
    tokens = ModelTokens.load(directory, ids=CountingIds())
    assert (tokens.eos_ids, tokens.context_tokens) == ((1,), 512)
    assert tokens.vocabulary_size == len(TOKENS)


@pytest.mark.parametrize(("pre", "together"), [("smollm", False), ("gpt-2", True)])
def test_digits_stand_alone_where_the_model_says_so(
    write: Write, tmp_path: Path, pre: str, together: bool
) -> None:
    """K1."""
    convert(write(pre=pre), tmp_path / "t")
    (ids,) = ModelTokens.load(tmp_path / "t", ids=CountingIds()).encode([" a12"])
    one, two = TOKENS.index("1"), TOKENS.index("2")
    assert ids == (TOKENS.index("Ġa"), *((TOKENS.index("12"),) if together else (one, two)))


def test_user_defined_tokens_are_control_tokens(write: Write, tmp_path: Path) -> None:
    """K2: markers that are not flagged special must not come out of text either."""
    convert(write(), tmp_path / "t")
    tokens = ModelTokens.load(tmp_path / "t", ids=CountingIds())
    (ids,) = tokens.encode(["<think><|e|>"])
    assert not {0, 1, 2} & set(ids)
    assert b"".join(tokens.table[i] for i in ids) == b"<think><|e|>"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "llama"}, "has a llama tokenizer"),
        ({"pre": "qwen2"}, "'qwen2'; supported are smollm"),
        ({"eos": None}, "names no token that ends"),
        ({"eos": 999}, "outside its vocabulary"),
        ({"context": 0}, "context length"),
        ({"kinds": KINDS[:-1]}, "kind of every token"),
        ({"tokens": [*TOKENS[:-1], "Ġa"]}, "repeated"),
        ({"merges": ["< |s|>"]}, "makes control tokens"),
        ({"merges": ["Ġa"]}, "not a pair"),
        ({"merges": ["x zz"]}, "do not fit"),
        ({"tokens": ["  ", *TOKENS[1:]]}, "blanks"),
    ],
)
def test_a_tokenizer_that_is_not_known_exactly_is_refused_by_name(
    write: Write, tmp_path: Path, changes: dict, told: str
) -> None:
    with pytest.raises(UnsupportedModel, match=told):
        convert(write(**changes), tmp_path / "t")
    assert not (tmp_path / "t" / META_FILE).exists()


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"not a gguf file at all", b"GGUF\3\0\0\0" + b"\xff" * 64]
)
def test_a_file_that_is_no_sound_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(UnsupportedModel, match="not a readable GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path / "t")


def test_other_weights_or_another_converter_lead_to_a_new_conversion(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, directory = write(), tmp_path / "t"
    convert(weights, directory)
    os.utime(weights, ns=(1, 1))
    assert convert(weights, directory) is True
    monkeypatch.setattr(room, "CONVERTER", room.CONVERTER + 1)
    assert convert(weights, directory) is True
    assert convert(weights, directory) is False


def test_a_conversion_that_was_cut_is_done_again(write: Write, tmp_path: Path) -> None:
    weights, directory = write(), tmp_path / "t"
    convert(weights, directory)
    (directory / META_FILE).write_text('{"converter": 1')
    assert convert(weights, directory) is True
    assert msgspec.json.decode((directory / META_FILE).read_bytes())["eos_ids"] == [1]


def test_a_template_that_went_away_is_not_kept(write: Write, tmp_path: Path) -> None:
    convert(write(), tmp_path / "t")
    convert(write(template=""), tmp_path / "t")
    with pytest.raises(UnsupportedModel, match="no chat template"):
        ModelTokens.load(tmp_path / "t", ids=CountingIds())
