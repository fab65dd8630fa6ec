"""A GGUF file's tokenizer and chat template, written once next to the weights.

Reading them out of the weights takes three seconds, so they are kept as `tokenizer.json` (in the
tokenizers library's format), `chat_template.jinja` and `tokens.json` (`model.Meta`). The last is
written last and removed first, each by an atomic rename: a crash half-way, other weights under the
same name or another version of this converter lead to a fresh conversion, never to a mixture.

Supported are byte-level BPE vocabularies (`gpt2`) whose way of cutting text into words is known
here exactly; all others are refused by name. Tokens of a vocabulary that are marked as control,
unknown or user-defined become control tokens: text never encodes to them (K2).

A byte that the vocabulary has no token for encodes to nothing, as in the tokenizers library
(SmolLM2 lacks six ASCII control characters and bytes that text hardly ever has). The embedded
engine's own tokenizer puts the control token with id 0 there, which K2 forbids.

Not here: downloading (`forebay.catalog.fetch`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forebay.tokens.model import META_FILE, TEMPLATE_FILE, TOKENIZER_FILE, Meta
from forebay.tokens.program import UnsupportedModel

CONVERTER = 1  # raise it when what is written changes: old conversions are then redone
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "codeshell")  # GPT-2's words, digits apart
_GPT2_WORDS = ("gpt-2",)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokenizer fields of a GGUF file."""

    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    chat_template: str | None
    context_tokens: int

    @property
    def control(self) -> dict[str, int]:
        marked = (_UNKNOWN, _CONTROL, _USER_DEFINED)
        pairs = zip(self.tokens, self.kinds, strict=False)  # _check compares the lengths
        return {text: i for i, (text, kind) in enumerate(pairs) if kind in marked}


def convert(weights: Path, directory: Path) -> bool:
    """Convert unless it was done before; whether there was anything to do.

    Takes three seconds of CPU: call it in a thread. Raises UnsupportedModel.
    """
    stat = weights.stat()
    if _is_current(directory, stat):
        return False
    vocabulary = _read(weights)
    tokenizer = _tokenizer(vocabulary)
    meta = Meta(
        converter=CONVERTER,
        source_bytes=stat.st_size,
        source_mtime_ns=stat.st_mtime_ns,
        pre=vocabulary.pre,
        control=vocabulary.control,
        eos_ids=vocabulary.eos_ids,
        bos="" if vocabulary.bos_id is None else vocabulary.tokens[vocabulary.bos_id],
        eos=vocabulary.tokens[vocabulary.eos_ids[0]],
        vocabulary=len(vocabulary.tokens),
        context_tokens=vocabulary.context_tokens,
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / META_FILE).unlink(missing_ok=True)
    _write(directory / TOKENIZER_FILE, tokenizer.to_str().encode())
    if vocabulary.chat_template is None:
        (directory / TEMPLATE_FILE).unlink(missing_ok=True)
    else:
        _write(directory / TEMPLATE_FILE, vocabulary.chat_template.encode())
    _write(directory / META_FILE, msgspec.json.encode(meta))
    return True


def _is_current(directory: Path, stat: os.stat_result) -> bool:
    try:
        meta = msgspec.json.decode((directory / META_FILE).read_bytes(), type=Meta)
    except (OSError, msgspec.DecodeError):
        return False
    made_from = (meta.converter, meta.source_bytes, meta.source_mtime_ns)
    return made_from == (CONVERTER, stat.st_size, stat.st_mtime_ns)


def _write(path: Path, content: bytes) -> None:
    # The process id keeps two converters apart; both write the same.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _read(weights: Path) -> _Vocabulary:
    try:
        fields = gguf.GGUFReader(weights).fields
    except (ValueError, KeyError, IndexError, TypeError) as fault:
        raise UnsupportedModel(f"{weights} is not a readable GGUF file: {fault}") from fault

    def get(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    kind, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UnsupportedModel(f"{weights.name} has a {kind} tokenizer; supported is gpt2")
    if pre not in (*_SINGLE_DIGITS, *_GPT2_WORDS):
        supported = ", ".join((*_SINGLE_DIGITS, *_GPT2_WORDS))
        raise UnsupportedModel(
            f"{weights.name} cuts text into words by {pre!r}; supported are {supported}"
        )
    tokens = get("tokenizer.ggml.tokens", [])
    eos_ids = [get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    architecture = get("general.architecture", "")
    vocabulary = _Vocabulary(
        pre=pre,
        tokens=tokens,
        kinds=get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens)),
        merges=get("tokenizer.ggml.merges", []),
        bos_id=get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(i for i in eos_ids if i is not None)),
        chat_template=get("tokenizer.chat_template"),
        context_tokens=get(f"{architecture}.context_length", 0),
    )
    _check(vocabulary, weights.name)
    return vocabulary


def _check(vocabulary: _Vocabulary, name: str) -> None:
    size = len(vocabulary.tokens)
    named = [i for i in (vocabulary.bos_id, *vocabulary.eos_ids) if i is not None]
    made = {merge.replace(" ", "", 1) for merge in vocabulary.merges}
    problems = {
        "has no vocabulary": size == 0,
        "has a vocabulary with repeated tokens": len(set(vocabulary.tokens)) != size,
        "does not say the kind of every token": len(vocabulary.kinds) != size,
        "names no token that ends a generation": not vocabulary.eos_ids,
        "names tokens outside its vocabulary": any(not 0 <= i < size for i in named),
        "makes control tokens out of text": not made.isdisjoint(vocabulary.control),
        "has user-defined tokens that are blanks": _has_blank(vocabulary),
        "does not say its context length": vocabulary.context_tokens <= 0,
    }
    for problem, present in problems.items():
        if present:
            raise UnsupportedModel(f"{name} {problem}; this tokenizer is not supported")


def _has_blank(vocabulary: _Vocabulary) -> bool:
    return any(not text.strip() for text in vocabulary.control)


def _tokenizer(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    numbers = {text: number for number, text in enumerate(vocabulary.tokens)}
    try:
        model = models.BPE(vocab=numbers, merges=_pairs(vocabulary.merges))
    except Exception as fault:  # the library raises plain Exception
        raise UnsupportedModel(f"The merges do not fit the vocabulary: {fault}") from fault
    tokenizer = tokenizers.Tokenizer(model)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if vocabulary.pre in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    else:
        tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(t, special=True, normalized=False) for t in vocabulary.control]
    )
    return tokenizer


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise UnsupportedModel("A merge of the vocabulary is not a pair")
    return [(first, second) for first, second in pairs]
