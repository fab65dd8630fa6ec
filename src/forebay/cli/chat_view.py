"""How `forebay chat` looks: the line under an answer, what was said, what it took.

Not here: where it comes from (`sitting.py`, `dialogues.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any

from forebay.cli.answering import Answer
from forebay.cli.screen import counted, print_table, printable
from forebay.core.money import format_usd, nanos_from_usd

PERIODS = {"day": "today", "month": "this month", "total": "in all"}
COLUMNS = (">answer", "ended", ">input", ">output", ">cost $")


def summary(done: Answer, amount_usd: str | None) -> str:
    """The line under an answer."""
    parts = [f"{done.output_tokens} tok"]
    if done.tokens_per_second is not None:
        parts.append(f"{done.tokens_per_second:.0f} tok/s")
    if done.first_token_seconds is not None:
        parts.append(f"first {done.first_token_seconds:.2f} s")
    if amount_usd is not None:
        parts.append(f"${amount_usd}")
    if done.finish_reason == "length":
        parts.append("cut at the output limit")
    return " · ".join(parts)


def left_out(turns: int) -> str:
    """Told once, when the model is first not shown all that was said."""
    oldest = "the oldest turn" if turns == 1 else f"the {turns} oldest turns"
    return f"left out, as the model's context is full: {oldest}; the conversation still has all"


def history(messages: Sequence[dict[str, str]]) -> str:
    """What was said, for people."""
    if not messages:
        return "Nothing was said yet."
    said = (f"{each['role']}\n{indent(printable(each['content']), '  ')}" for each in messages)
    return "\n\n".join(said)


def total(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum; without an amount if none is known."""
    amounts = [each["amount_usd"] for each in answers if each["amount_usd"] is not None]
    return {
        "answers": len(answers),
        "input_tokens": sum(each["input_tokens"] for each in answers),
        "output_tokens": sum(each["output_tokens"] for each in answers),
        "amount_usd": format_usd(sum(map(nanos_from_usd, amounts))) if amounts else None,
    }


def print_usage(usage: dict[str, Any]) -> None:
    """The answers as a table, and the key's own in a line."""
    answers = usage["answers"]
    if answers:
        rows = [
            (number, each["finish_reason"], *_took(each)) for number, each in enumerate(answers, 1)
        ]
        print_table(COLUMNS, [*rows, ("total", "", *_took(usage["total"]))])
    else:
        print("Nothing was answered yet.")
    if usage["key"] is not None:
        print(key_line(usage["key"]), flush=True)


def _took(row: dict[str, Any]) -> tuple[object, ...]:
    return row["input_tokens"], row["output_tokens"], row["amount_usd"] or "unknown"


def key_line(own: dict[str, Any]) -> str:
    """What the key has used, and the least of what limits it, of `GET /v1/usage/me`."""
    period = own["current_period"]
    used = f"{counted(period['calls'], 'call')}, ${period['cost_usd']}"
    parts = [f"{used} {PERIODS[own['budget']['key']['period']]}"]
    left = [scope["left_usd"] for scope in own["budget"].values() if scope["left_usd"] is not None]
    if left:
        parts.append(f"${min(left, key=nanos_from_usd)} left to spend")
    if limits := list(_limits(own["limits"])):
        parts.append(f"at most {' and '.join(limits)} a minute")
    return f"this key: {'; '.join(parts)}"


def _limits(scopes: dict[str, Any]) -> Iterator[str]:
    for name, noun in (("requests_per_minute", "requests"), ("tokens_per_minute", "tokens")):
        found = [scopes[scope][name] for scope in ("key", "project", "organization")]
        if known := [each for each in found if each is not None]:
            yield f"{min(known)} {noun}"
