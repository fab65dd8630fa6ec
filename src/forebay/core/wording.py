"""What is wrong with a value, in words for people who do not know the libraries that say it. Pure.

Not here: where a value was written (`forebay.config`), how a failure is shown (`forebay.cli`).
"""

from __future__ import annotations

import re

# What pydantic says after "Input should be", and the kind of value that it means.
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"a (valid dictionary|dictionary or an instance of).*", "a group of settings (names with values)"),
        (r"a valid integer.*", "a whole number"),
        (r"a valid (number|decimal).*", "a number"),
        (r"a valid (tuple|list).*", "a list"),
        (r"a valid string.*", "text"),
        (r"a valid boolean.*", "true or false"),
        (r"a valid path.*|an instance of Path.*", "a path"),
        (r"greater than or equal to (.*)", r"at least \1"),
        (r"less than or equal to (.*)", r"at most \1"),
    )
)  # fmt: skip


def plain(text: str) -> str:
    """The same without a library's own terms; what is not known stays as it is."""
    text = text.removeprefix("Value error, ").replace("Field required", "is missing")
    lead, should_be, kind = text.partition("should be ")
    if not should_be or lead not in ("", "Input "):
        return text
    for pattern, meant in _KINDS:
        if pattern.fullmatch(kind):
            return f"must be {pattern.sub(meant, kind, count=1)}"
    return f"must be {kind}"


def placed(path: str, text: str, names: tuple[str, ...]) -> tuple[str, str]:
    """The place of a problem and the problem, where the text itself begins with the place.

    `names` are what the text may call the thing at `path`: `("queue", "queue.flow_jobs is 0", …)`
    is a problem of `queue.flow_jobs`, and it is 0.
    """
    for name in names:
        if not text.startswith(name):
            continue
        rest = text[len(name) :]
        inner = re.match(r"((?:\.\w+)*):? (.*)", rest, re.DOTALL)
        if inner:
            return path + inner[1], inner[2]
    return path, text
