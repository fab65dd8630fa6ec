"""POST /v1/completions: how its requests are read and its answers written (see `answer.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.gateway.answer import Output
from forebay.gateway.completion_request import parse_completion
from forebay.gateway.request import ApiRequest
from forebay.gateway.schema import (
    Completion,
    CompletionChoice,
    Head,
    Place,
    WireUsage,
    completion_logprobs,
)
from forebay.gateway.sse import CompletionChunks


class CompletionShape:
    """Text in, more text out."""

    id_prefix = "cmpl-"

    def parse(self, body: Mapping[str, Any]) -> ApiRequest:
        """Check every field. Raises InvalidRequest, UnsupportedParameter."""
        return parse_completion(body)

    def whole(
        self, head: Head, request: ApiRequest, outputs: Sequence[Output], usage: WireUsage
    ) -> Completion:
        """The body of a call that is not streamed."""
        logprobs = request.sampling.logprobs
        return Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[
                CompletionChoice(
                    text=output.text,
                    index=index,
                    logprobs=completion_logprobs(output.logprobs, Place()) if logprobs else None,
                    finish_reason=output.finish_reason,
                )
                for index, output in enumerate(outputs)
            ],
            usage=usage,
            service_tier=head.service_tier,
            system_fingerprint=head.system_fingerprint,
        )

    def writer(self, head: Head, request: ApiRequest) -> CompletionChunks:
        """What renders the chunks of one stream."""
        return CompletionChunks(head, include_usage=request.include_usage)
