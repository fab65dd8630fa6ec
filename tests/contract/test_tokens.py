"""The tokens contract on the scripted vocabulary and on the default model's, and K1 against the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers

from forebay.core.call import Message
from forebay.testing.clock import CountingIds
from forebay.testing.contracts.tokens import *  # noqa: F403
from forebay.testing.contracts.tokens import TokensSubject
from forebay.tokens.convert import convert
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.model import TOKENIZER_FILE, ModelTokens
from forebay.tokens.scripted import scripted_tokens

CORPUS = Path(__file__).parent.parent / "golden" / "tokens" / "corpus.jsonl"
SMOLLM_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SCRIPTED_SYSTEM = "You are a helpful AI assistant."
# The engine's own tokenizer and template in a process of its own: it is heavy and keeps the
# interpreter lock. Reads JSON [texts, dialogues], answers [ids per text, ids per dialogue].
ENGINE = """
import json, sys
sys.modules["openvino_telemetry"] = None  # tells nobody
import openvino_genai
tokenizer = openvino_genai.Tokenizer(sys.argv[1])
def encode(text):
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False).input_ids.data.flat]
def render(messages):
    return encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
texts, dialogues = json.load(sys.stdin)
json.dump([[encode(t) for t in texts], [render(d) for d in dialogues]], sys.stdout)
"""


def chatml(messages: Sequence[Message], system: str) -> str:
    """The template of both models, by hand."""
    if messages[0].role != "system":
        messages = [Message("system", system), *messages]
    said = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
    return said + "<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def scripted() -> Iterator[TokensSubject]:
    model = scripted_tokens(CountingIds(), context_tokens=8192)
    tokens = HuggingFaceTokens({"scripted": model})
    control = {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}

    def reference(messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        rest = chatml(messages, SCRIPTED_SYSTEM)
        while rest:
            marks = {rest.find(text): text for text in control if text in rest}
            end = min(marks, default=len(rest))
            ids += rest[:end].encode()
            if marks:
                ids.append(control[marks[end]])
                end += len(marks[end])
            rest = rest[end:]
        return ids

    yield TokensSubject(
        tokens, "scripted", 8192, control, "<|im_start|>", reference, lambda t: list(t.encode())
    )
    tokens.close()


@pytest.fixture(scope="session")
def converted(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("smollm2") / "tokens"
    assert convert(smollm2_gguf, directory)
    return directory


@pytest.fixture(scope="session")
def smollm2(converted: Path) -> Iterator[TokensSubject]:
    model = ModelTokens.load(converted, ids=CountingIds())
    tokens = HuggingFaceTokens({"smollm2": model})
    own = tokenizers.Tokenizer.from_file(str(converted / TOKENIZER_FILE))
    control = {token.content: i for i, token in own.get_added_tokens_decoder().items()}
    yield TokensSubject(
        tokens,
        "smollm2",
        8192,
        control,
        "<|im_start|>",
        lambda messages: own.encode(chatml(messages, SMOLLM_SYSTEM), add_special_tokens=False).ids,
        lambda text: own.encode(text, add_special_tokens=False).ids,
    )
    tokens.close()


@pytest.fixture(params=["scripted", pytest.param("smollm2", marks=pytest.mark.model)])
def subject(request: pytest.FixtureRequest) -> TokensSubject:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, TokensSubject)
    return found


def corpus() -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    return [(line["kind"], line["text"]) for line in lines]


def dialogues_of(text: str) -> list[list[Message]]:
    return [
        [Message("user", text)],
        [Message("system", text), Message("user", text)],
        [Message("user", text), Message("assistant", text), Message("user", text)],
    ]


def benign_texts() -> list[str]:
    return [text for kind, text in corpus() if kind not in ("control", "unknown")]


@pytest.fixture(scope="session")
def engine_ids(smollm2_gguf: Path) -> tuple[list[list[int]], list[list[int]]]:
    """The engine's ids of every benign text, and of every dialogue made of one."""
    dialogues = [
        [{"role": m.role, "content": m.content} for m in dialogue]
        for text in benign_texts()
        for dialogue in dialogues_of(text)
    ]
    answer = subprocess.run(
        [sys.executable, "-c", ENGINE, str(smollm2_gguf)],
        input=json.dumps([benign_texts(), dialogues]),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert answer.returncode == 0, answer.stderr
    text_ids, dialogue_ids = json.loads(answer.stdout)
    return text_ids, dialogue_ids


@pytest.mark.model
@pytest.mark.timeout(180)
async def test_the_corpus_gets_the_engines_own_ids_as_text_and_as_chat(
    smollm2: TokensSubject, engine_ids: tuple[list[list[int]], list[list[int]]]
) -> None:
    """K1: at least 300 benign texts, each alone and in three dialogues, id for id."""
    texts = benign_texts()
    assert len(set(texts)) >= 300
    for text, ids in zip(texts, engine_ids[0], strict=True):
        assert list(smollm2.encode(text)) == ids, repr(text)
    dialogues = [dialogue for text in texts for dialogue in dialogues_of(text)]
    for dialogue, ids in zip(dialogues, engine_ids[1], strict=True):
        assert list(await smollm2.ids(*dialogue)) == ids, repr(dialogue)


async def test_corpus_texts_that_spell_control_tokens_stay_text(subject: TokensSubject) -> None:
    """K2."""
    control = set(subject.control.values())
    texts = [text for kind, text in corpus() if kind in ("control", "unknown")]
    assert len(texts) >= 30
    for text in texts:
        for dialogue in dialogues_of(text):
            plain = [Message(m.role, "x") for m in dialogue]
            found = [i for i in await subject.ids(*dialogue) if i in control]
            assert found == [i for i in await subject.ids(*plain) if i in control], repr(text)


@pytest.mark.model
async def test_every_benign_text_comes_back_from_its_ids(smollm2: TokensSubject) -> None:
    """E5, on all languages and emoji of the corpus."""
    for kind, text in corpus():
        if kind not in ("control", "unknown"):
            pieces, rest, _ = smollm2.decoded(smollm2.encode(text))
            assert "".join(pieces) + rest == text
