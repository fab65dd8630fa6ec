"""A compiled Jinja template in a sandbox, with budgets (K3).

Templates come with models, from the operator's configuration, never from a call. Still, a hostile
one must not run for ever: every loop counts its rounds, the output is bounded, powers are refused
and repeats and ranges are bounded. What authors of templates expect is there: block trimming, loop
controls, `tojson`, `raise_exception`.

Not here: sentinels and control tokens (`sentinel.py`, `template.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forebay.core.errors import InvalidRequest
from forebay.tokens.sentinel import LooksAtContent, Opaque, refuse

_MAX_ROUNDS = 100_000  # 2,048 messages take 2,048 rounds of the usual template's one loop
_MAX_CHARACTERS = 1 << 20
# What the Python behind a template can raise.
_FAULTS = (
    *(jinja2.TemplateError, ArithmeticError, RecursionError, MemoryError),
    *(TypeError, ValueError, LookupError, AttributeError),
)


class UnsupportedModel(Exception):
    """This model's tokenizer or chat template cannot be used safely; the message says why."""


class _BudgetExceeded(Exception):
    """The template runs too long or prints too much."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**":
            raise _BudgetExceeded
        for sequence, times in ((left, right), (right, left)):
            repeats = isinstance(sequence, str | list | tuple) and isinstance(times, int)
            if repeats and len(sequence) * times > _MAX_CHARACTERS:
                raise _BudgetExceeded
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> NoReturn:
    raise InvalidRequest(
        f"The model's chat template refuses these messages: {str(message)[:200]}",
        param="messages",
    )


def _tojson(value: object, indent: int | None = None) -> str:
    if isinstance(value, Opaque):
        refuse()
    return json.dumps(value, ensure_ascii=False, indent=indent, default=refuse)


class Program:
    """A compiled template with its budgets."""

    def __init__(self, source: str) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        try:
            tree = environment.parse(source)
            # Every loop first counts a round; nothing else in a template can run for long.
            for loop in tree.find_all(nodes.For):
                call = nodes.Call(nodes.Name("_round", "load"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(call))
            self._code = environment.compile(tree)
        except jinja2.TemplateError as fault:
            raise UnsupportedModel(f"The chat template cannot be compiled: {fault}") from fault
        self._environment = environment

    def render(self, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """Raises InvalidRequest where the template calls raise_exception, else UnsupportedModel."""
        try:
            return self._render(messages, names)
        except LooksAtContent:
            raise UnsupportedModel("it inspects or changes the text of messages") from None
        except _BudgetExceeded:
            raise UnsupportedModel("it runs too long or prints too much") from None
        except _FAULTS as fault:
            raise UnsupportedModel(f"{type(fault).__name__}: {fault}") from fault

    def _render(self, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        rounds = 0

        def count_round() -> None:
            nonlocal rounds
            rounds += 1
            if rounds > _MAX_ROUNDS:
                raise _BudgetExceeded

        def bounded_range(*arguments: int) -> range:
            made = range(*arguments)
            if len(made) > _MAX_ROUNDS:
                raise _BudgetExceeded
            return made

        known: dict[str, Any] = {**self._environment.globals, **names, "_round": count_round}
        known |= {"range": bounded_range, "raise_exception": _raise_exception}
        template = jinja2.Template.from_code(self._environment, self._code, known)
        printed, characters = [], 0
        for piece in template.generate(messages=messages, add_generation_prompt=True):
            characters += str.__len__(piece)
            if characters > _MAX_CHARACTERS:
                raise _BudgetExceeded
            printed.append(piece)
        return "".join(printed)
