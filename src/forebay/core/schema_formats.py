"""Formats of strings that can be enforced, and the patterns that may stand beside them.

Not here: the grammars of their texts (`forebay.engine.grammar`).
"""

from __future__ import annotations

# Each with the lengths of the texts that are generated for it.
FORMATS = {
    "date-time": (20, 20),
    "date": (10, 10),
    "time": (9, 9),
    "uuid": (36, 36),
    "email": (6, 30),
    "uri": (11, 60),
    "ipv4": (7, 15),
}
# What zod writes beside a format. A pattern is taken only where it says no more than the format's
# own grammar; a test compares the texts.
_DAY = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?"
    r":0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d"
    r"|2[0-8])))"
)
_CLOCK = r"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
_HEX = "[0-9a-fA-F]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
KNOWN_PATTERNS = {
    "date": (f"^{_DAY}$",),
    "date-time": (
        f"^{_DAY}T{_CLOCK}(?:Z))$",
        f"^{_DAY}T{_CLOCK}" + r"(?:Z|([+-](?:[01]\d|2[0-3]):[0-5]\d)))$",
    ),
    "uuid": (
        f"^({_HEX}{{8}}-{_HEX}{{4}}-[1-8]{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
        "|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$",
        f"^({_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}})$",
        f"^({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})$",
    ),
    "email": (
        r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+"
        r"[A-Za-z]{2,}$",
    ),
    "ipv4": (rf"^(?:{_BYTE}\.){{3}}{_BYTE}$",),
}
