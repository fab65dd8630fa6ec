"""Between the SQLite ledger's tables and our types, in the column order of `sqlite_sql`.

Not here: which statements run (`sqlite_verbs`, `sqlite_reads`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from forebay.core.delta import FinishReason
from forebay.core.hold import Account, Claim, Period, Remembered
from forebay.core.job import Lane
from forebay.core.money import Price, PriceTerms
from forebay.core.principal import Scopes
from forebay.core.records import EngineWindow
from forebay.core.usage import Kind, Outcome, Timings, Usage, UsageRow
from forebay.ledger.rules import Held, Standing

Columns = tuple[Any, ...]


class Posted(NamedTuple):
    """Settlements of one scope summed by period, up to a sequence."""

    through_sequence: int
    amounts: list[tuple[str, int]]


_reasons = msgspec.json.Decoder(tuple[FinishReason | None, ...])
_progress = msgspec.msgpack.Decoder(dict[str, int])
_encode_reasons = msgspec.json.Encoder().encode
encode_progress = msgspec.msgpack.Encoder().encode
decode_progress = _progress.decode


def price_of(columns: Columns) -> Price:
    version, model, lane, input_nanos, cached_input_nanos, output_nanos = columns
    return Price(
        version, PriceTerms(model, Lane(lane), input_nanos, cached_input_nanos, output_nanos)
    )


def account_of(columns: Columns) -> Account:
    scope, cap, period, max_open = columns
    return Account(scope, cap, Period(period), max_open)


def standing_of(columns: Columns) -> Standing:
    scope, cap, period, max_open, open_holds, posted, pending = columns
    return Standing(Account(scope, cap, Period(period), max_open), posted, pending, open_holds)


def held_columns(held: Held) -> Columns:
    return (
        held.id,
        *held.scopes,
        *held.periods,
        held.model,
        held.lane,
        held.price.version,
        held.input_tokens,
        held.ceiling_tokens,
        held.choices,
        int(held.streamed),
        held.owner,
        held.attempt,
        held.amount_nanos,
        held.created_at,
        held.claim_key,
        held.kind,
    )


def held_of(columns: Columns, price: Price) -> Held:
    return Held(
        id=columns[0],
        scopes=Scopes(*columns[1:4]),
        periods=(columns[4], columns[5], columns[6]),
        model=columns[7],
        lane=Lane(columns[8]),
        price=price,
        input_tokens=columns[10],
        ceiling_tokens=columns[11],
        choices=columns[12],
        streamed=bool(columns[13]),
        owner=columns[14],
        attempt=columns[15],
        amount_nanos=columns[16],
        created_at=columns[17],
        claim_key=columns[18],
        kind=Kind(columns[19]),
    )


def remembered_of(key: str, columns: Columns) -> Remembered:
    call_id, fingerprint, head, claimed_at, answer = columns
    return Remembered(call_id, Claim(key, fingerprint, head), claimed_at, answer)


PRICE_VERSION = 9  # where held columns carry it


def row_columns(row: UsageRow) -> Columns:
    usage, timings = row.usage, row.timings
    return (
        row.sequence,
        row.call_id,
        row.organisation_id,
        row.project_id,
        row.key_id,
        row.model,
        row.lane,
        row.outcome,
        row.reason,
        row.attempt,
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.output_tokens,
        _encode_reasons(usage.finish_reasons),
        usage.counted,
        timings.queue_ms,
        timings.ttft_ms,
        timings.duration_ms,
        row.price_version,
        row.amount_nanos,
        row.created_at,
        row.resolved_at,
        bytes.fromhex(row.previous_hash),
        bytes.fromhex(row.hash),
        row.kind,
    )


def row_of(columns: Columns) -> UsageRow:
    (input_tokens, cached, output_tokens, reasons, counted) = columns[10:15]
    return UsageRow(
        sequence=columns[0],
        call_id=columns[1],
        organisation_id=columns[2],
        project_id=columns[3],
        key_id=columns[4],
        model=columns[5],
        lane=Lane(columns[6]),
        outcome=Outcome(columns[7]),
        reason=columns[8],
        attempt=columns[9],
        usage=Usage(input_tokens, output_tokens, cached, _reasons.decode(reasons), counted),
        timings=Timings(*columns[15:18]),
        price_version=columns[18],
        amount_nanos=columns[19],
        created_at=columns[20],
        resolved_at=columns[21],
        previous_hash=columns[22].hex(),
        hash=columns[23].hex(),
        kind=Kind(columns[24]),
    )


def window_of(columns: Columns) -> EngineWindow:
    engine, boot, minute_at, made, received, discarded, complete = columns
    return EngineWindow(engine, boot, minute_at, made, received, discarded, bool(complete))
