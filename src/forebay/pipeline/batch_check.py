"""Reading a batch's file before any of it runs (B10): whether every line asks for something that can
be served, and whether there is money for the least that all of them can cost.

Not here: what the fields of a line mean (a `LineFormat`), how the file is read in pieces (`batch.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.admission import BODY_BYTES_PER_TOKEN
from forebay.batch import BatchSettings, Line
from forebay.catalog import Catalog
from forebay.core.batch import Batch, LineError, Place
from forebay.core.call import Call
from forebay.core.errors import InvalidRequest, ModelNotFound, NotAllowed
from forebay.core.hold import Balance, Period
from forebay.core.job import Lane
from forebay.core.money import format_usd
from forebay.core.principal import Principal
from forebay.pipeline.batch_lines import LineFormat, LineRefused
from forebay.pipeline.terms import require_choices

# So many bad lines are explained each; of the others the numbers are told.
MOST_EXPLAINED = 100
_NUMBERS_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What lines are compared with."""

    batch: Batch
    principal: Principal
    format: LineFormat
    catalog: Catalog
    settings: BatchSettings


class Check:
    """Is shown every line of one file, in order, and then asked for `errors`."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.model = ""
        self.total = 0
        self._least_nanos = 0
        self._custom_ids: set[int] = set()
        self._errors: list[LineError] = []
        self._unexplained: list[int] = []

    def line(self, line: Line) -> bool:
        """Look at it; false: no more of them need be shown."""
        most = self._terms.settings.max_lines
        if line.is_blank and line.number <= 2 * most:
            return True
        self.total += 1
        if self.total > most or line.is_blank:
            message = f"The file has more than {most} lines, which is the limit. Split it."
            self._errors.append(LineError("too_many_lines", message, line.number))
            return False
        try:
            self._look(line)
        except LineRefused as refused:
            error = refused.error
            if len(self._errors) < MOST_EXPLAINED:
                self._errors.append(LineError(error.code, error.message, line.number, error.param))
            else:
                self._unexplained.append(line.number)
        return True

    def errors(self, balances: Sequence[Balance]) -> list[LineError]:
        """What is wrong, with each bad line named; nothing: the file is accepted."""
        if not self.total:
            message = (
                "The file has no lines. Write one JSON object on each line, one for each call."
            )
            return [LineError("empty_file", message)]
        found = list(self._errors)
        if self._unexplained:
            message = (
                f"{len(self._unexplained)} more lines are wrong: {_ranges(self._unexplained)}. "
                f"The first {MOST_EXPLAINED} are explained."
            )
            found.append(LineError("more_errors", message))
        return found or self._unaffordable(balances)

    def _look(self, line: Line) -> None:
        """Raises LineRefused."""
        terms = self._terms
        if line.too_long:
            most = terms.format.most_line_bytes
            raise _refused(
                "line_too_long",
                f"This line has {line.size_bytes} bytes; the limit is {most} bytes. Shorten it.",
            )
        place = Place(terms.batch.id, line.number)
        endpoint = terms.batch.order.endpoint
        read = terms.format.read(line.content, place, endpoint, terms.principal)
        self._require_new(read.custom_id)
        self._require_served(read.call)

    def _require_new(self, custom_id: str) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        if number in self._custom_ids:
            raise _refused(
                "duplicate_custom_id",
                f"The custom_id {custom_id!r:.80} is that of an earlier line, too. Give each line "
                "one of its own.",
                "custom_id",
            )
        self._custom_ids.add(number)

    def _require_served(self, call: Call) -> None:
        catalog = self._terms.catalog
        try:
            route = catalog.choose(call.principal, call.model, Lane.BATCH, call.max_output_tokens)
            require_choices(call, route)
        except ModelNotFound as unknown:
            message = f"The model {call.model!r:.80} is not supported by the Batch API. {unknown}"
            raise _refused("model_not_found", message, "body.model") from None
        except InvalidRequest as invalid:
            raise _refused(invalid.code, invalid.message, f"body.{invalid.param}") from None
        except NotAllowed as refusal:
            raise _refused(refusal.code, refusal.message, refusal.param) from None
        if self.model and route.model != self.model:
            raise _refused(
                "mismatched_model",
                f"This line is for the model {route.model!r}, those before it are for "
                f"{self.model!r}. A file is for one model: split it.",
                "body.model",
            )
        self.model = route.model
        price = catalog.price(route.price_version).terms
        cheapest = min(price.input_nanos, price.cached_input_nanos)
        self._least_nanos += cheapest * (_text_bytes(call) // BODY_BYTES_PER_TOKEN)

    def _unaffordable(self, balances: Sequence[Balance]) -> list[LineError]:
        """What the prompts alone must cost is above what is left of a budget. One of a day or a month
        may be there again in time."""
        fails = self._terms.settings.without_budget == "fail"
        for balance in balances:
            cap = balance.account.cap_nanos
            if cap is None or (balance.account.period is not Period.TOTAL and not fails):
                continue
            left = cap - balance.posted_nanos  # what is pending may come back
            if self._least_nanos > left:
                message = (
                    f"The prompts of this file cost at least {format_usd(self._least_nanos)} USD, and "
                    f"{format_usd(max(0, left))} USD are left of a budget. Nothing was run."
                )
                return [LineError("insufficient_quota", message)]
        return []


def _refused(code: str, message: str, param: str | None = None) -> LineRefused:
    return LineRefused(LineError(code, message, param=param))


def _text_bytes(call: Call) -> int:
    """At least so many bytes of the prompt are text; ids count for what they are."""
    if call.messages:
        return sum(len(message.content) for message in call.messages)
    if isinstance(call.prompt, tuple):
        return len(call.prompt) * BODY_BYTES_PER_TOKEN
    return len(call.prompt)


def _ranges(numbers: Sequence[int]) -> str:
    """Of ascending numbers: 7, 9-12, 40."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return shown if len(shown) <= _NUMBERS_CHARACTERS else shown[:_NUMBERS_CHARACTERS] + "…"
