"""What the gateway is given: the corridor, the catalogue, who is calling, and its own settings.

Not here: how these are built (`forebay.wiring`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Protocol

from forebay.admission import Standing
from forebay.catalog.contract import Catalog
from forebay.core.call import Call
from forebay.core.clock import Clock, IdSource, Spawn
from forebay.core.dialogue import Turn
from forebay.core.event import CallEvent
from forebay.core.principal import Principal
from forebay.gateway.cors import check_origins
from forebay.gateway.peers import check_networks
from forebay.observe.metrics import Metrics
from forebay.pipeline.administration import Administration
from forebay.pipeline.background import Begun
from forebay.pipeline.batches import BatchDesk, FileDesk
from forebay.pipeline.dialogues import Dialogues
from forebay.pipeline.turns import ShownTurns
from forebay.tenancy.contract import Tenancy

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


class Pipeline(Protocol):
    """The walk of a call, as the gateway sees it."""

    async def knock(self, principal: Principal) -> None:
        """The cheapest refusal; before the body is read."""

    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        """The next one: a body too large for the tokens that are left, before it is decoded."""

    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        """What is left of the limits of this key, and of the model (or alias) if one is named."""

    def run(self, call: Call) -> AsyncGenerator[list[CallEvent], None]:
        """The call's events from Admitted to Finished or Failed, in bunches of what is ready
        together; closing it = the client left."""

    async def count(self, call: Call) -> int:
        """The tokens of the prompt that this call would have. Nothing is run or charged."""


class Background(Protocol):
    """Calls for which nobody waits, as the gateway sees them; a turn is what the pipeline stores of
    one."""

    async def start(self, call: Call) -> Begun:
        """Begin it; raises what refuses it."""

    async def begun_before(self, call: Call) -> str | None:
        """The id of the call that has this one's idempotency key, if there is one."""

    def is_begun(self, turn: Turn) -> bool:
        """Whether a worker has it, or had it."""

    async def is_logged(self, turn: Turn) -> bool:
        """Whether its events can be read."""

    def read(self, turn: Turn) -> AsyncGenerator[list[CallEvent], None]:
        """All of them, from Admitted to Finished or Failed, as they come; broken off by a stop."""

    async def cancel(self, turn: Turn) -> Turn:
        """End it, if it has not ended. Raises KeyError if it is gone."""

    async def forget(self, conversation_id: str) -> None:
        """This conversation was deleted: end what is made in it."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether calls can be served now; if not, each reason in one sentence."""

    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that handlers use. One per process."""

    pipeline: Pipeline
    catalog: Catalog
    tenancy: Tenancy
    metrics: Metrics
    ids: IdSource
    clock: Clock
    spawn: Spawn
    health: Callable[[], Readiness]
    administration: Administration
    dialogues: Dialogues
    turns: ShownTurns
    background: Background
    files: FileDesk
    batches: BatchDesk


class KeepAlive(StrEnum):
    """What a stream that has nothing to say sends so that proxies keep it open."""

    COMMENT = "comment"
    CHUNK = "chunk"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and times of the HTTP side. `metadata["help"]` of each field is its documentation."""

    max_body_bytes: int = field(
        default=4 * 1024 * 1024,
        metadata={"help": "Largest request body; a larger one gets 413."},
    )
    body_seconds: float = field(
        default=20.0, metadata={"help": "Longest a request body may take to arrive; then 408."}
    )
    body_grace_seconds: float = field(
        default=5.0,
        metadata={"help": "Time that a request body has before its rate is looked at."},
    )
    min_body_bytes_per_second: int = field(
        default=1024,
        metadata={"help": "Slowest that a request body may arrive after that; then 408."},
    )
    first_byte_seconds: float = field(
        default=2.0,
        metadata={
            "help": "Longest a stream's status line waits for the first token. Until it leaves, "
            "failures are plain HTTP errors."
        },
    )
    keep_alive_seconds: float = field(
        default=15.0, metadata={"help": "Silence after which a stream sends a sign of life."}
    )
    keep_alive: KeepAlive = field(
        default=KeepAlive.COMMENT,
        metadata={
            "help": "That sign: an SSE comment, an empty chunk (for clients that choke on "
            "comments), or nothing."
        },
    )
    slow_client_seconds: float = field(
        default=30.0,
        metadata={"help": "Longest a client may take no bytes of its answer; then it is cut off."},
    )
    idle_seconds: int = field(
        default=75,
        metadata={"help": "Longest an idle connection is kept open for the next request."},
    )
    header_seconds: float = field(
        default=10.0, metadata={"help": "Longest the head of a request may take to arrive."}
    )
    max_header_bytes: int = field(
        default=65_536, metadata={"help": "Largest head (request line and headers); then 431."}
    )
    max_headers: int = field(
        default=100, metadata={"help": "Most header lines of a request; then 431."}
    )
    max_connections: int = field(
        default=10_000,
        metadata={
            "help": "Most connections of a listener; then idle ones are closed, the oldest first, "
            "and if none is idle, new ones get 503. Fewer where the system allows fewer files."
        },
    )
    max_connections_per_ip: int = field(
        default=4096,
        metadata={
            "help": "Most connections of one client address (of IPv6: of its /64); then its oldest "
            "idle one is closed, and if none is idle, new ones get 429."
        },
    )
    max_bad_keys_per_minute: int = field(
        default=60,
        metadata={
            "help": "Requests without a valid API key of one client address in a minute, after "
            "which such requests get 429 instead of 401."
        },
    )
    trusted_proxies: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Addresses or networks of reverse proxies in front of this server: only they "
            "are believed what X-Forwarded-For says of the client's address, and they may have any "
            "number of connections."
        },
    )
    public_url: str = field(
        default="",
        metadata={
            "help": "Where clients reach this server, without /v1, as https://llm.example.org: "
            "errors link to their explanation there. If empty, `forebay up` takes the address "
            "that it listens on, unless that is all addresses."
        },
    )
    cors_origins: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Origins (scheme://host[:port]) of web sites whose scripts may call the API "
            "from a browser, or * alone for every one; if empty, none may."
        },
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, int | float) and not 0 < value < float("inf"):
                raise ValueError(f"gateway.{setting.name} is {value}, but must be above 0")
        if self.public_url:
            _check_url(self.public_url)
        try:
            check_networks(self.trusted_proxies)
        except ValueError as fault:
            raise ValueError(f"gateway.trusted_proxies: {fault}") from None
        try:
            check_origins(self.cors_origins)
        except ValueError as fault:
            raise ValueError(f"gateway.cors_origins: {fault}") from None


def _check_url(url: str) -> None:
    if not _URL.fullmatch(url):
        raise ValueError(
            f"gateway.public_url is {url!r:.100}, but must be an address as https://llm.example.org"
        )
    if url.rstrip("/").endswith("/v1"):
        raise ValueError(f"gateway.public_url is {url!r:.100}; leave out the /v1 at its end")
