"""Where webhooks may go. Pure.

The address comes from an operator (who holds an admin key or the data directory), so private
networks are allowed: most receivers of a self-hosted service are there. Plain http is a setting, also
to this machine: an event shows what somebody spends, and the services that listen beside this server
speak plain http and take their neighbours for friends.

Not here: sending (`http`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from forebay.core.errors import InvalidRequest

MAX_URL_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The webhooks of spend alerts."""

    allow_http: bool = field(
        default=False,
        metadata={"help": "Whether webhooks may go to http:// addresses, this machine's too."},
    )


def require_url(url: str, settings: AlertSettings) -> None:
    """Raises InvalidRequest unless webhooks may be sent there."""
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > MAX_URL_CHARACTERS:
        raise _refused(f"must be at most {MAX_URL_CHARACTERS:,} ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as fault:
        raise _refused(f"is not a URL: {fault}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("must begin with https:// and a host, such as https://example.com/alerts")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _refused("must have no user, password or fragment; the signature says who sends")
    if parts.scheme == "http" and not settings.allow_http:
        raise _refused("must begin with https://; the setting alerts.allow_http allows plain http")


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"The URL of a webhook {why}.", param="webhook_url")
