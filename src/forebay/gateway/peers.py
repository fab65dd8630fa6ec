"""Who is at the other end: the address that limits per client count by.

A reverse proxy that the operator has named is believed what `X-Forwarded-For` says: the client is
the last address in it that is no such proxy. Everybody else is who its connection says; a client
that writes the header itself changes nothing.

An IPv6 client has a whole /64 to itself, so that is what is counted; an IPv4 address inside an IPv6
one is the IPv4 address.

Not here: what is counted (`connections.py`, `guesses.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

UNKNOWN = "unknown"
_IPV6_BITS = 64
# Enough for any chain of proxies; what stands further left is not looked at.
_MOST_HOPS = 20


class Peers:
    """`trusted`: addresses or networks of proxies."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusted = check_networks(trusted)

    def trusts(self, host: str) -> bool:
        """Whether this is a proxy that the operator has named."""
        if not self._trusted:
            return False
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)

    def client(self, scope: Scope) -> str:
        """The client of a request, as `counted` writes it."""
        host = scope["client"][0] if scope.get("client") else UNKNOWN
        if not self.trusts(host):
            return counted(host)
        said = b",".join(
            value for name, value in scope["headers"] if name == b"x-forwarded-for"
        ).decode("latin-1")
        for hop in map(without_port, reversed(said.rsplit(",", _MOST_HOPS))):
            if not self.trusts(hop):
                return counted(hop) if said.strip() else counted(host)
        return counted(host)


def without_port(hop: str) -> str:
    """The address of a hop: some proxies write 203.0.113.7:5555 or [2001:db8::1]:5555."""
    hop = hop.strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def counted(host: str) -> str:
    """The address that is counted for this one; what is no address counts as one of its own."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ip_network((address, _IPV6_BITS), strict=False))
    return str(address)


def check_networks(values: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    """The networks. Raises ValueError naming the first that is none."""
    found = []
    for value in values:
        try:
            found.append(ip_network(value, strict=False))
        except ValueError:
            raise ValueError(
                f"{value!r:.100} is no address or network such as 10.0.0.7 or 10.0.0.0/8"
            ) from None
    return found
