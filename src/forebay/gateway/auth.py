"""The API key of a request, from its Authorization header.

Not here: whether the key is any good (`forebay.tenancy`).
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.core.errors import InvalidKey

# Ours have 47 characters; anything much longer is not worth a hash.
MAX_SECRET_CHARACTERS = 512
# Where other services take a key.
_ELSEWHERE = (b"x-api-key", b"api-key")


def bearer(headers: Sequence[tuple[bytes, bytes]], *, example: str = "fbk_live_…") -> str:
    """The secret. Raises InvalidKey, never repeating what was sent."""
    how = f"Send it in a header: 'Authorization: Bearer {example}'."
    found = [value for name, value in headers if name == b"authorization"]
    if not found:
        for name, _ in headers:
            if name in _ELSEWHERE:
                raise InvalidKey(f"An API key in the header {name.decode()} is not read. {how}")
        raise InvalidKey(f"You did not provide an API key. {how}")
    if len(found) > 1:
        raise InvalidKey(f"The request has {len(found)} Authorization headers. Send exactly one.")
    scheme, _, secret = found[0].strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise InvalidKey(f"The Authorization header does not say 'Bearer'. {how}")
    secret = secret.strip()
    if not secret:
        raise InvalidKey(f"There is no API key after 'Bearer'. {how}")
    if len(secret) > MAX_SECRET_CHARACTERS or not secret.isascii() or b" " in secret:
        raise InvalidKey(f"What follows 'Bearer' is not an API key. {how}")
    return secret.decode("ascii")
