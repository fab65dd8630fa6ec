"""Text that others wrote, inside of a prompt of ours: between marks that it cannot have. Pure.

Every text is kept from having any of our marks, not only those around it: what a user says cannot end
its block, nor look like a summary or like something that the assistant said.

Not here: what is quoted, and what is said about it (`window.py`, `forebay.pipeline.summaries`).
"""

from __future__ import annotations

import re

MARKS = ("dialogue", "summary", "system", "developer", "user", "assistant")
# Up to the next `<` alone, so that a text of nothing else does not take quadratic time.
_MARK = re.compile(rf"<(?=[^\w<]*(?:{'|'.join(MARKS)}))", re.IGNORECASE)


def quoted(name: str, text: str) -> str:
    """The text between `<name>` and `</name>`, one of `MARKS`; whatever in it looks like any of them is
    made harmless."""
    return marked(name, _MARK.sub("&lt;", text))


def marked(name: str, block: str) -> str:
    """What is quoted already, between such marks, too."""
    assert name in MARKS, "a text could have it"
    return f"<{name}>\n{block}\n</{name}>"
