"""API keys as text: making, checking, hiding and hashing them. Pure, but for the pepper's file.

A key is `fbk_live_` + 32 base62 characters (190 random bits) + 6 base62 characters of CRC-32 over
everything before them. The prefix lets secret scanners find a leaked key, and the underscores let
a double-click select it whole; the checksum lets anyone, us first, throw out mistyped and invented
keys without a store. It protects nothing: whoever can invent a key can also compute its CRC.

What is stored is HMAC-SHA-256 of the key. Its HMAC key is derived from the *pepper*, 32 random
bytes in a file of their own, so that reading the database reveals no key and writing to it mints
none. No secret serves two purposes: each use of the pepper derives a key of its own (`derive`).

Not here: which keys exist and what they may do (`memory.py`, `sql.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import zlib
from pathlib import Path

from forebay.core.clock import IdSource
from forebay.core.errors import InvalidKey

PREFIX = "fbk_live_"
SECRET_CHARACTERS = 32
CHECKSUM_CHARACTERS = 6  # 62**6 > 2**32, so every CRC-32 fits
KEY_CHARACTERS = len(PREFIX) + SECRET_CHARACTERS + CHECKSUM_CHARACTERS
PEPPER_BYTES = 32
DIGEST_PURPOSE = "api-key-digest"

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WELL_FORMED = re.compile(f"{PREFIX}[0-9A-Za-z]{{{SECRET_CHARACTERS + CHECKSUM_CHARACTERS}}}")
# A mistyped key is still worth naming to its owner, if enough of it stays hidden.
_NAMEABLE = re.compile(f"{PREFIX}[0-9A-Za-z]{{20,64}}")
# 64 bytes for 190 bits: reduced modulo 62**32 they are uniform but for one part in 2**322, in one
# draw; rejection sampling would be exact, and a loop whose length depends on the secret.
_DRAW_BYTES = 64


class PepperRefused(Exception):
    """The pepper's file cannot be used; the message says what to do."""


def make_key(ids: IdSource) -> str:
    """A fresh secret. Shown once; nothing but its digest is ever stored."""
    number = int.from_bytes(ids.random_bytes(_DRAW_BYTES)) % 62**SECRET_CHARACTERS
    body = PREFIX + _base62(number, SECRET_CHARACTERS)
    return body + _checksum(body)


def check(secret: str) -> bool:
    """Whether this has the shape and the checksum of a key; says nothing about its existence."""
    if _WELL_FORMED.fullmatch(secret) is None:
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
    return f"{secret[: len(PREFIX) + 2]}…{secret[-4:]}"


def refusal(secret: str) -> InvalidKey:
    """The one answer to every key that is not live, whatever the reason.

    What is no key of ours at all, such as another service's, is told so: that gives nothing away.
    """
    if _NAMEABLE.fullmatch(secret) is None:
        return InvalidKey(
            # Not PREFIX: a bare prefix may be what was presented, and that is never repeated.
            "Incorrect API key provided: this is not a Forebay key. Those begin with 'fbk_live' "
            f"and have {KEY_CHARACTERS} characters; create one with `forebay keys create`."
        )
    return InvalidKey(
        f"Incorrect API key provided: {redact(secret)}. It is unknown, expired or revoked; "
        "create a key with `forebay keys create`."
    )


def derive(pepper: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose: HKDF-Expand (RFC 5869) of one block.

    The pepper is uniformly random already, so HKDF-Extract has nothing to do (section 3.3).
    """
    if len(pepper) != PEPPER_BYTES:
        raise ValueError(f"a pepper has {PEPPER_BYTES} bytes, not {len(pepper)}")
    return hmac.digest(pepper, f"forebay:{purpose}".encode() + b"\x01", hashlib.sha256)


def digest(secret: str, digest_key: bytes) -> bytes:
    """What is stored and looked up: 32 bytes from which the key cannot be found.

    `digest_key` is `derive(pepper, DIGEST_PURPOSE)`, made once: this is done for every call.
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
