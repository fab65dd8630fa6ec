"""A JSON object becomes an ApiRequest, or an error that says exactly what is wrong with it.

This is what all endpoints that generate have in common: model, streaming, sampling.

Not here: what only one of them has (`chat_request.py`, `completion_request.py`,
`responses_request.py`), which fields exist at all (`fields.py`), whether the model does (`forebay.catalog`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from forebay.core.call import Message, SamplingWish
from forebay.core.errors import InvalidRequest
from forebay.core.job import Lane
from forebay.gateway.continued import Continued
from forebay.gateway.fields import (
    INT64,
    MAX_CHOICES,
    MAX_MODEL_CHARACTERS,
    MAX_PENALTY,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    STREAM_OPTIONS,
)
from forebay.gateway.read import boolean, decimal, integer, missing, seen, text, wrong_type
from forebay.gateway.schema import LANES

_WHICH_MODELS = "GET /v1/models lists the models that this key may use."


class Ignoring(Protocol):
    """A valid request of any endpoint."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names in it that mean nothing to us."""


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid request. `ignored` are the names in it that mean nothing to us."""

    model: str
    lane: Lane
    streamed: bool
    include_usage: bool
    running_usage: bool
    choices: int
    max_output_tokens: int | None
    sampling: SamplingWish
    ignored: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] = ""
    continued: Continued | None = None
    background: bool = False


def common(
    body: Mapping[str, Any],
    ignored: list[str],
    *,
    logprobs: bool,
    json_schema: str = "",
    **own: Any,
) -> ApiRequest:
    """The fields of all these endpoints, checked, and those that the endpoint has read itself."""
    streamed = boolean(body, "stream") or False
    options = _stream_options(body, ignored) if streamed else {}
    if not streamed and body.get("stream_options") is not None:
        ignored.append("stream_options")
    return ApiRequest(
        model=_model(body),
        lane=_lane(body),
        streamed=streamed,
        include_usage=boolean(options, "include_usage", path="stream_options.") or False,
        running_usage=boolean(options, "continuous_usage_stats", path="stream_options.") or False,
        choices=integer(body, "n", low=1, high=MAX_CHOICES) or 1,
        sampling=_sampling(body, logprobs, json_schema),
        ignored=tuple(dict.fromkeys(ignored)),
        **own,
    )


def asks_to_be_strict(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether `x-forebay-strict` is true. Raises InvalidRequest for what is neither true nor false."""
    for name, value in headers:
        if name == b"x-forebay-strict":
            said = value.strip().lower()
            if said not in (b"true", b"false"):
                raise InvalidRequest(
                    f"The header x-forebay-strict is {value.decode('latin-1')[:40]!r}, but must be "
                    "true or false.",
                    code="invalid_value",
                )
            return said == b"true"
    return False


def require_nothing_ignored(request: Ignoring) -> None:
    """For clients that ask to be strict with them. Raises InvalidRequest."""
    if request.ignored:
        named = ", ".join(name[:64] for name in request.ignored[:10])
        raise InvalidRequest(
            f"These parameters mean nothing here: {named}. Remove them, or do not send "
            "x-forebay-strict: true, which asks for this error.",
            param=request.ignored[0],
            code="unknown_parameter",
        )


def _sampling(body: Mapping[str, Any], logprobs: bool, json_schema: str) -> SamplingWish:
    least, most = -MAX_PENALTY, MAX_PENALTY
    ignore_eos = boolean(body, "ignore_eos") or False
    if ignore_eos and json_schema:
        raise InvalidRequest(
            "ignore_eos is true, but a JSON document has an end. Remove ignore_eos or the format "
            "of the answer.",
            param="ignore_eos",
            code="unsupported_value",
        )
    return SamplingWish(
        temperature=decimal(body, "temperature", low=0, high=2),
        top_p=_positive(body, "top_p", 1, "For greedy decoding send temperature 0."),
        top_k=_top_k(body),
        seed=integer(body, "seed", low=-INT64, high=INT64 - 1),
        stop=_stop(body),
        ignore_eos=ignore_eos,
        presence_penalty=decimal(body, "presence_penalty", low=least, high=most) or 0.0,
        frequency_penalty=decimal(body, "frequency_penalty", low=least, high=most) or 0.0,
        repetition_penalty=_positive(body, "repetition_penalty", most, "1 is no penalty.") or 1.0,
        logprobs=logprobs,
        json_schema=json_schema,
    )


def _model(body: Mapping[str, Any]) -> str:
    value = body.get("model")
    if value is None:
        raise missing("model", _WHICH_MODELS)
    return text(value, "model", low=1, high=MAX_MODEL_CHARACTERS, if_empty=_WHICH_MODELS)


def _lane(body: Mapping[str, Any]) -> Lane:
    value = body.get("service_tier")
    if value is None:
        return Lane.INTERACTIVE
    lane = LANES.get(value) if isinstance(value, str) else None
    if lane is None:
        raise InvalidRequest(
            f"service_tier is {seen(value)}, but must be one of {', '.join(LANES)}.",
            param="service_tier",
            code="invalid_value" if isinstance(value, str) else "invalid_type",
        )
    return lane


def _stream_options(body: Mapping[str, Any], ignored: list[str]) -> Mapping[str, Any]:
    value = body.get("stream_options")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object", value)
    ignored += [f"stream_options.{name}" for name in value if name not in STREAM_OPTIONS]
    return value


def _top_k(body: Mapping[str, Any]) -> int | None:
    """-1 and 0 turn it off, as in vLLM and llama.cpp."""
    value = integer(body, "top_k", low=-1, high=INT64 - 1)
    return value if value is not None and value > 0 else None


def _positive(body: Mapping[str, Any], name: str, high: int, hint: str) -> float | None:
    value = decimal(body, name, low=-(10**400), high=10**400)
    if value is None or 0 < value <= high:
        return value
    raise InvalidRequest(
        f"{name} is {seen(body[name])}, but must be above 0 and at most {high}. {hint}",
        param=name,
        code=f"decimal_{'below_min' if value <= 0 else 'above_max'}_value",
    )


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (text(value, "stop", low=1, high=MAX_STOP_CHARACTERS),)
    if not isinstance(value, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(value) > MAX_STOPS:
        raise InvalidRequest(
            f"stop has {len(value)} strings; the limit is {MAX_STOPS}.",
            param="stop",
            code="array_above_max_length",
        )
    return tuple(
        text(item, f"stop[{i}]", low=1, high=MAX_STOP_CHARACTERS) for i, item in enumerate(value)
    )
