"""Who sends requests without a valid API key, and how many: whoever tries keys out is slowed down.

One bucket per client address (GCRA): so many in a minute at once, then one at a time as the minute
passes. It is looked at only after a key has been found wrong, so a right one is served whoever else
shares its address: a proxy, an office, a cloud. Keys have 190 random bits; what the limit saves is
log lines and patience, not the secret.

- Memory is bounded: `MOST_ADDRESSES`; beyond, the one that was seen least recently is forgotten.

Not here: which address is counted (`peers.py`), whether a key is valid (`forebay.tenancy`).
"""

from __future__ import annotations

from collections import OrderedDict

from starlette.types import Scope

from forebay.core.clock import Clock
from forebay.core.errors import CallerError, InvalidKey, RateLimited
from forebay.gateway.peers import Peers
from forebay.gateway.services import GatewaySettings
from forebay.observe.log import get_logger

MOST_ADDRESSES = 65_536
_MINUTE_SECONDS, _ROUNDING_SECONDS = 60.0, 1e-6
_log = get_logger("forebay.gateway")


class Guesses:
    """Of one listener."""

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self._most = settings.max_bad_keys_per_minute
        self._peers = Peers(settings.trusted_proxies)
        self._clock = clock
        # Address: when its bucket will be full again, and whether the operator was told of it.
        self._known: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def refuse(self, scope: Scope, wrong: InvalidKey) -> CallerError:
        """What to answer to this request, which has no valid key."""
        address = self._peers.client(scope)
        now, each_seconds = self._clock.monotonic(), _MINUTE_SECONDS / self._most
        full_at, told = self._known.get(address, (now, False))
        if full_at <= now:
            full_at, told = now, False
        wait_seconds = full_at + each_seconds - (now + _MINUTE_SECONDS)
        if wait_seconds <= _ROUNDING_SECONDS:
            self._remember(address, full_at + each_seconds, told)
            return wrong
        if not told:
            _log.warning("bad_keys", address=address, limit_per_minute=self._most)
        self._remember(address, full_at, True)
        return RateLimited(
            f"More than {self._most} requests of your address in a minute had no valid API key. "
            "Check the key; this one is not valid either.",
            retry_after_seconds=wait_seconds,
        )

    def _remember(self, address: str, full_at: float, told: bool) -> None:
        self._known[address] = (full_at, told)
        self._known.move_to_end(address)
        while len(self._known) > MOST_ADDRESSES:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)
