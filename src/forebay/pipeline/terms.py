"""What a call may generate: the terms of its route, fitted to its prompt. Pure.

Not here: which route (`forebay.catalog`), what of the past the prompt shows (`turns.py`).
"""

from __future__ import annotations

from dataclasses import replace

from forebay.core.call import Call, Route, SamplingWish
from forebay.core.errors import ContextLengthExceeded, InvalidRequest
from forebay.core.job import Sampling

# A default output bound shrinks to what fits the context or the balance, but not below this.
LEAST_OUTPUT_TOKENS = 16


def require_choices(call: Call, route: Route) -> None:
    """Refuse more choices than one engine runs at once, and several of what is always the same."""
    if route.pool_sequences is not None and call.choices > route.pool_sequences:
        raise InvalidRequest(
            f"n is {call.choices}, but this model generates at most {route.pool_sequences} choices "
            "at once. Lower n.",
            param="n",
            code="integer_above_max_value",
        )
    if call.choices > 1 and sampling_of(route.sampling, call.sampling).temperature == 0:
        raise InvalidRequest(
            f"n is {call.choices}, but with temperature 0 every choice would be the same. Send n 1, "
            "or a temperature above 0.",
            param="n",
            code="invalid_value",
        )


def fit(route: Route, input_tokens: int, call: Call) -> Route:
    """The route with the largest output bound that prompt and context allow.

    A maximum that the client asked for is kept or refused; a default shrinks down to 16.
    """
    room = limit_tokens(route, call) - input_tokens
    if room < _least(route):
        raise too_long(call, route, str(input_tokens))
    return replace(route, ceiling_tokens=min(route.ceiling_tokens, room))


def limit_tokens(route: Route, call: Call) -> int:
    """The most tokens of prompt and answer together."""
    if route.pool_kv_tokens is None:
        return route.context_tokens
    return min(route.context_tokens, route.pool_kv_tokens // call.choices)


def _least(route: Route) -> int:
    return route.ceiling_tokens if route.asked else min(LEAST_OUTPUT_TOKENS, route.ceiling_tokens)


def too_long(call: Call, route: Route, tokens: str) -> ContextLengthExceeded:
    what, least = call.asks_with, _least(route)
    wanted = f"{least} for the answer" if route.asked else f"at least {least}"
    each = f" for each of {call.choices} choices" if call.choices > 1 else ""
    subject, advice = f"{what} {'take' if what == 'messages' else 'takes'}", f"Shorten the {what}"
    wish = call.remembrance
    if wish is not None and wish.instructions:
        subject, advice = f"{what} and instructions take", f"Shorten the {what} or the instructions"
    if wish is not None and not wish.cut and (wish.conversation_id or wish.previous_id):
        subject, advice = f"{what} and all that was said before take", "Send truncation auto"
    return ContextLengthExceeded(
        f"This model's maximum context length is {limit_tokens(route, call)} tokens{each}. Your "
        f"{subject} {tokens} tokens, and {wanted} are needed on top. {advice}, or lower the maximum "
        "number of output tokens.",
        param=what,
    )


def sampling_of(defaults: Sampling, wish: SamplingWish) -> Sampling:
    """What the client asked for, and the model's defaults for the rest."""
    return Sampling(
        temperature=defaults.temperature if wish.temperature is None else wish.temperature,
        top_p=defaults.top_p if wish.top_p is None else wish.top_p,
        top_k=defaults.top_k if wish.top_k is None else wish.top_k,
        seed=wish.seed,
        stop=wish.stop,
        ignore_eos=wish.ignore_eos,
        presence_penalty=wish.presence_penalty,
        frequency_penalty=wish.frequency_penalty,
        repetition_penalty=wish.repetition_penalty,
        logprobs=wish.logprobs,
        json_schema=wish.json_schema,
    )
