"""Keys as text: making, checking, hiding and hashing them. Pure, but for the pepper's file.

There are two kinds, API keys (`fbk_live_`) and admin keys (`fba_live_`); each is its prefix + 32
base62 characters (190 random bits) + 6 base62 characters of CRC-32 over everything before them, and
each is digested under a key of its own, so that one kind can never be taken for the other. The
prefix lets secret scanners find a leaked key, and the underscores let
a double-click select it whole; the checksum lets anyone, us first, throw out mistyped and invented
keys without a store. It protects nothing: whoever can invent a key can also compute its CRC.

What is stored is HMAC-SHA-256 of the key. Its HMAC key is derived from the *pepper*, 32 random
bytes in a file of their own, so that reading the database reveals no key and writing to it mints
none. No secret serves two purposes: each use of the pepper derives a key of its own (`derive`).

Not here: which keys exist and what they may do (`contract.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path

from forebay.core.clock import IdSource
from forebay.core.errors import InvalidKey

SECRET_CHARACTERS = 32
CHECKSUM_CHARACTERS = 6  # 62**6 > 2**32, so every CRC-32 fits
PEPPER_BYTES = 32

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class KeyKind:
    """What a key begins with, and the purpose of the key that its digest is made with."""

    prefix: str
    purpose: str


API_KEY = KeyKind("fbk_live_", "api-key-digest")
ADMIN_KEY = KeyKind("fba_live_", "admin-key-digest")

_PREFIX_CHARACTERS = len(API_KEY.prefix)
KEY_CHARACTERS = _PREFIX_CHARACTERS + SECRET_CHARACTERS + CHECKSUM_CHARACTERS
_BODY = re.compile(f"[0-9A-Za-z]{{{SECRET_CHARACTERS + CHECKSUM_CHARACTERS}}}")
# A mistyped key is still worth naming to its owner, if enough of it stays hidden.
_NAMEABLE = re.compile("fb[ka]_live_[0-9A-Za-z]{20,64}")
# 64 bytes for 190 bits: reduced modulo 62**32 they are uniform but for one part in 2**322, in one
# draw; rejection sampling would be exact, and a loop whose length depends on the secret.
_DRAW_BYTES = 64


class PepperRefused(Exception):
    """The pepper's file cannot be used; the message says what to do."""


def make_key(ids: IdSource, kind: KeyKind = API_KEY) -> str:
    """A fresh secret. Shown once; nothing but its digest is ever stored."""
    number = int.from_bytes(ids.random_bytes(_DRAW_BYTES)) % 62**SECRET_CHARACTERS
    body = kind.prefix + _base62(number, SECRET_CHARACTERS)
    return body + _checksum(body)


def check(secret: str, kind: KeyKind = API_KEY) -> bool:
    """Whether this has the shape and the checksum of such a key; not whether it exists."""
    if not secret.startswith(kind.prefix) or _BODY.fullmatch(secret, _PREFIX_CHARACTERS) is None:
        return False
    return secret[-CHECKSUM_CHARACTERS:] == _checksum(secret[:-CHECKSUM_CHARACTERS])


def redact(secret: str) -> str:
    """What may be shown of a key: `fbk_live_ab…wxyz`.

    Of anything that does not look like ours nothing is shown: it may be another service's secret,
    or text meant to be read by whoever reads our logs.
    """
    if not secret:
        return "(none)"
    if _NAMEABLE.fullmatch(secret) is None:
        return "(not a Forebay key)"
    return f"{secret[: _PREFIX_CHARACTERS + 2]}…{secret[-4:]}"


def refusal(secret: str, kind: KeyKind = API_KEY) -> InvalidKey:
    """The one answer to every key that is not live, whatever the reason.

    What is no key of this kind at all, such as another service's, is told so: that gives nothing
    away.
    """
    noun, command = _WORDS[kind]
    if _NAMEABLE.fullmatch(secret) is None:
        return InvalidKey(
            # Not the whole prefix: that may be what was presented, and it is never repeated.
            f"Incorrect API key provided: this is not a Forebay key. Those begin with "
            f"'{kind.prefix[:-1]}' and have {KEY_CHARACTERS} characters; create one with "
            f"`{command}`."
        )
    if not secret.startswith(kind.prefix):
        other = next(other for other in _WORDS if other is not kind)
        where = "the admin listener" if other is ADMIN_KEY else "the API"
        return InvalidKey(
            f"Incorrect API key provided: {redact(secret)}. That is an {_WORDS[other][0]}, which "
            f"is for {where} only; create an {noun} with `{command}`."
        )
    return InvalidKey(
        f"Incorrect API key provided: {redact(secret)}. It is unknown, expired or revoked; "
        f"create a key with `{command}`."
    )


def outlived(key_id: str) -> InvalidKey:
    """The same for a call that runs long after it was ordered: its key is not live any more."""
    return InvalidKey(
        f"The API key {key_id} that ordered this does not work any more: it is unknown, expired or "
        f"revoked. Order it again with another key; create one with `{_WORDS[API_KEY][1]}`."
    )


_WORDS = {
    API_KEY: ("API key", "forebay keys create"),
    ADMIN_KEY: ("admin key", "forebay keys create-admin"),
}


def derive(pepper: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose: HKDF-Expand (RFC 5869) of one block.

    The pepper is uniformly random already, so HKDF-Extract has nothing to do (section 3.3).
    """
    if len(pepper) != PEPPER_BYTES:
        raise ValueError(f"a pepper has {PEPPER_BYTES} bytes, not {len(pepper)}")
    return hmac.digest(pepper, f"forebay:{purpose}".encode() + b"\x01", hashlib.sha256)


def digest(secret: str, digest_key: bytes) -> bytes:
    """What is stored and looked up: 32 bytes from which the key cannot be found.

    `digest_key` is `derive(pepper, kind.purpose)`, made once: this is done for every call.
    """
    return hmac.digest(digest_key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256)


def open_pepper(path: Path, ids: IdSource) -> bytes:
    """Read this installation's pepper; create it, once, if there is no such file.

    Raises PepperRefused for a file of the wrong size or one that others can read. Losing the file
    makes every key useless, so it is never replaced and never appears half-written.
    """
    if not path.exists():
        _create(path, ids.random_bytes(PEPPER_BYTES))
    try:
        mode = path.stat().st_mode
        pepper = path.read_bytes() if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise PepperRefused(f"cannot read {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise PepperRefused(f"{path} can be read by others; run: chmod 600 {path}")
    if len(pepper) != PEPPER_BYTES:
        raise PepperRefused(
            f"{path} is damaged (it should be a file of {PEPPER_BYTES} bytes). Restore it from a "
            "backup: without it no stored API key works. To start over instead, delete it and "
            "create all keys anew with `forebay keys create`."
        )
    return pepper


def _create(path: Path, pepper: bytes) -> None:
    """Write beside, sync, then link into place: after a crash the file is whole or absent."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(pepper)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise PepperRefused(f"cannot create {path}: {error.strerror}") from error


def _base62(number: int, width: int) -> str:
    characters = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_CHARACTERS)
