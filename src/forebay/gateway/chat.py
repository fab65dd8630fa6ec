"""POST /v1/chat/completions: how its requests are read and its answers written (see `answer.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from forebay.gateway.answer import Output
from forebay.gateway.chat_request import parse_chat
from forebay.gateway.request import ApiRequest
from forebay.gateway.schema import (
    AssistantMessage,
    ChatCompletion,
    Choice,
    Head,
    InConversation,
    WireUsage,
    chat_logprobs,
)
from forebay.gateway.sse import ChatChunks


class ChatShape:
    """Messages in, messages out."""

    id_prefix = "chatcmpl-"

    def parse(self, body: Mapping[str, Any]) -> ApiRequest:
        """Check every field. Raises InvalidRequest, UnsupportedParameter."""
        return parse_chat(body)

    def whole(
        self, head: Head, request: ApiRequest, outputs: Sequence[Output], usage: WireUsage
    ) -> ChatCompletion:
        """The body of a call that is not streamed."""
        logprobs = request.sampling.logprobs
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[
                Choice(
                    index=index,
                    message=AssistantMessage("assistant", output.text),
                    logprobs=chat_logprobs(output.logprobs) if logprobs else None,
                    finish_reason=output.finish_reason,
                )
                for index, output in enumerate(outputs)
            ],
            usage=usage,
            service_tier=head.service_tier,
            system_fingerprint=head.system_fingerprint,
            conversation=InConversation(head.conversation_id) if head.conversation_id else UNSET,
        )

    def writer(self, head: Head, request: ApiRequest) -> ChatChunks:
        """What renders the chunks of one stream."""
        return ChatChunks(head, include_usage=request.include_usage)
