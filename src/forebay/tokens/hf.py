"""Tokens of all served models on the tokenizers library: bounds, caches, threads (K3).

    messages ─▶ byte bound ─▶ skeleton ─▶ pieces known? ─▶ encode the others ─▶ ids
                  400          per shape     per message      in a thread

What was encoded before is remembered per message, so a dialogue costs only its newest turn. The
memory is kept apart per `scope` (an organisation): nobody learns by timing what another one sent.

Not here: one model's tokenizer (`model.py`), its template (`template.py`), decoding (`decode.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from forebay.core.call import Message, Prompt
from forebay.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, Overloaded
from forebay.tokens.cache import BoundedCache
from forebay.tokens.contract import Decoder, Tokens
from forebay.tokens.decode import TableDecoder
from forebay.tokens.model import ModelTokens
from forebay.tokens.settings import TokensSettings

# More bytes per token than nearly all texts have (prose 4 to 5, deeply indented code 12); beyond, the
# exact count is not worth its cost.
_BYTES_PER_TOKEN = 16
_MAX_MESSAGES = 2048
_INLINE_MESSAGES = 64  # rendering more of them for the first time takes milliseconds
_INT_BYTES = 40  # one id in a tuple: the number and its place


class HuggingFaceTokens(Tokens):
    """Shared by all tasks of one event loop; `models` maps ids to loaded tokenizers."""

    def __init__(
        self, models: Mapping[str, ModelTokens], settings: TokensSettings | None = None
    ) -> None:
        self._settings = settings or TokensSettings()
        self._models = dict(models)
        self._known = BoundedCache[tuple[str, str, str], tuple[int, ...]](
            entries=self._settings.cache_entries, weight=self._settings.cache_bytes
        )
        self._threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="tokens")
        self._waiting_characters = 0

    async def render(self, model: str, messages: Sequence[Message], *, scope: str = "") -> Prompt:
        tokens = self._model(model)
        _check(messages, tokens.context_tokens)
        if len(messages) <= _INLINE_MESSAGES or tokens.template.knows(messages):
            pieces = tokens.pieces(messages)
        else:
            loop = asyncio.get_running_loop()
            pieces = await loop.run_in_executor(self._threads, tokens.pieces, messages)
        return Prompt(await self._ids(model, pieces, scope))

    async def encode(self, model: str, prompt: str | tuple[int, ...], *, scope: str = "") -> Prompt:
        tokens = self._model(model)
        if isinstance(prompt, str):
            _check_bytes([prompt], tokens.context_tokens, "prompt")
            try:
                return Prompt(await self._ids(model, [prompt], scope))
            except InvalidRequest as fault:
                raise InvalidRequest(fault.message, param="prompt", code=fault.code) from fault
        tokens.require_ids(prompt)
        return Prompt(prompt)

    async def _ids(self, model: str, pieces: Sequence[int | str], scope: str) -> tuple[int, ...]:
        """The pieces' ids in order; texts that were encoded before are remembered."""
        tokens = self._model(model)
        found: dict[str, tuple[int, ...]] = {}
        missing: list[str] = []
        for piece in pieces:
            if isinstance(piece, str) and piece not in found:
                ids = self._known.get((scope, model, piece))
                found[piece] = ids or ()
                if ids is None:
                    missing.append(piece)
        if missing:
            encoded = await self._encode(tokens, missing)
            for text, ids in zip(missing, encoded, strict=True):
                found[text] = ids
                weight = sys.getsizeof(text) + _INT_BYTES * len(ids)
                self._known.put((scope, model, text), ids, weight)
        prompt: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                prompt.append(piece)
            else:
                prompt.extend(found[piece])
        return tuple(prompt)

    def decoder(self, model: str, stop: Sequence[str]) -> Decoder:
        return TableDecoder(self._model(model).table, stop)

    def close(self) -> None:
        """Stop the threads; work that waits for them is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _model(self, model: str) -> ModelTokens:
        try:
            return self._models[model]
        except KeyError:
            raise ModelNotFound(f"The model {model[:64]!r} has no tokenizer here.") from None

    async def _encode(self, tokens: ModelTokens, texts: list[str]) -> list[tuple[int, ...]]:
        characters = sum(map(len, texts))
        if characters <= self._settings.inline_characters:
            return tokens.encode(texts)
        waiting = self._waiting_characters
        if waiting and waiting + characters > self._settings.waiting_characters:
            raise Overloaded("Too much text waits to be tokenised.", retry_after_seconds=1.0)
        self._waiting_characters += characters
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, tokens.encode, texts)
        finally:
            self._waiting_characters -= characters


def _check(messages: Sequence[Message], context_tokens: int) -> None:
    """Bound the work before any is done. Raises InvalidRequest, ContextLengthExceeded."""
    if not messages:
        raise InvalidRequest("There must be at least one message.", param="messages")
    if len(messages) > _MAX_MESSAGES:
        raise InvalidRequest(
            f"There are {len(messages)} messages, at most {_MAX_MESSAGES} are allowed.",
            param="messages",
        )
    _check_bytes([message.content for message in messages], context_tokens, "messages")


def _check_bytes(texts: Sequence[str], context_tokens: int, param: str) -> None:
    limit_bytes = _BYTES_PER_TOKEN * context_tokens
    if (size_bytes := sum(map(len, texts))) <= limit_bytes:
        size_bytes = sum(_utf8_size(text, i, param) for i, text in enumerate(texts))
    if size_bytes > limit_bytes:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_tokens} tokens. Your {param} "
            f"{'has' if param == 'prompt' else 'have'} at least {size_bytes} bytes; more than "
            f"{limit_bytes} are not even counted as tokens.",
            param=param,
        )


def _utf8_size(text: str, position: int, param: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            "The text holds half of a surrogate pair.",
            param=param if param == "prompt" else f"{param}[{position}].content",
            code="invalid_unicode",
        ) from None
