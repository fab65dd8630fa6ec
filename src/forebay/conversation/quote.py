"""Text that others wrote, inside of a prompt of ours: between two marks that it cannot have. Pure.

Not here: what is quoted, and what is said about it (`window.py`, `forebay.pipeline.summaries`).
"""

from __future__ import annotations

import re


def quoted(name: str, text: str) -> str:
    """The text between `<name>` and `</name>`; whatever in it looks like one of them is made harmless."""
    mark = re.compile(rf"<(?=[\s/]*{re.escape(name)})", re.IGNORECASE)
    return f"<{name}>\n{mark.sub('&lt;', text)}\n</{name}>"
