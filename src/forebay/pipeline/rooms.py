"""The contracts that the corridor walks through.

Not here: which implementation stands behind each (`forebay.wiring`).
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.admission import Admission
from forebay.batch import Batches, Blobs, Files
from forebay.catalog import Catalog
from forebay.conversation import Conversations, Summaries, TurnLogs, Turns
from forebay.core.clock import Clock, IdSource, Spawn
from forebay.ledger import Ledger
from forebay.pipeline.report import Reporter
from forebay.pipeline.resolve import Resolver
from forebay.pipeline.turns import CallTurns
from forebay.queue import JobQueue
from forebay.stream import TokenStream
from forebay.tenancy import Tenancy
from forebay.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Rooms:
    """One of each contract, plus the clock, ids, task creation, the reporter and the resolver."""

    tenancy: Tenancy
    admission: Admission
    catalog: Catalog
    conversations: Conversations
    turns: Turns
    logs: TurnLogs
    summaries: Summaries
    files: Files
    blobs: Blobs
    batches: Batches
    tokens: Tokens
    ledger: Ledger
    queue: JobQueue
    stream: TokenStream
    clock: Clock
    ids: IdSource
    spawn: Spawn
    report: Reporter
    resolve: Resolver
    remember: CallTurns
