"""What people call keys, organisations and projects, and what they mean by it. Pure.

Not here: what is done with them (the other `admin_*.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay.core.errors import InvalidRequest
from forebay.core.hold import Period
from forebay.core.job import Lane
from forebay.core.money import nanos_from_usd
from forebay.tenancy import KeyInfo, ProjectInfo

# Ids end in random hexadecimal digits: six of them tell 4,000 keys apart, if not always.
LEAST_ENDING = 6
MOST_NAMED = 20


def organisation_of(projects: Sequence[ProjectInfo], organisation: str) -> list[ProjectInfo]:
    """Its projects; there is at least one. Raises InvalidRequest naming those that exist."""
    mine = [info for info in projects if info.organisation == organisation]
    if not mine:
        names = dict.fromkeys(info.organisation for info in projects)
        raise InvalidRequest(
            f"There is no organisation {organisation!r}; {there_are(names)}", param="organisation"
        )
    return mine


def project_of(projects: Sequence[ProjectInfo], organisation: str, project: str) -> ProjectInfo:
    """The project that these names mean. Raises InvalidRequest naming those that exist."""
    mine = organisation_of(projects, organisation)
    for info in mine:
        if info.project == project:
            return info
    raise InvalidRequest(
        f"There is no project {project!r} in {organisation!r}; "
        f"{there_are(info.project for info in mine)}",
        param="project",
    )


def key_of(keys: Sequence[KeyInfo], text: str) -> KeyInfo:
    """The one key that this means: an id, or an end, a name or a redacted form that is unique."""
    for info in keys:
        if info.id == text:
            return info
    end = text.removeprefix("…")
    found = [
        info
        for info in keys
        if (text and text in (info.name, info.redacted))
        or (len(end) >= LEAST_ENDING and info.id.endswith(end))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidRequest(
            f"There is no key {text!r}. `forebay keys list` shows them; use an id, its last "
            f"{LEAST_ENDING} characters or more, or a name.",
            param="key_id",
        )
    listed = there_are(f"{info.id} ({info.name or info.redacted})" for info in found)
    raise InvalidRequest(f"{text!r} means several keys; {listed} Use an id.", param="key_id")


def lane_of(name: str) -> Lane:
    try:
        return Lane(name)
    except ValueError:
        names = ", ".join(Lane)
        raise InvalidRequest(f"There is no lane {name!r}: use {names}.", param="lanes") from None


def period_of(name: str) -> Period:
    try:
        return Period(name)
    except ValueError:
        names = ", ".join(Period)
        raise InvalidRequest(f"There is no period {name!r}: use {names}.", param="period") from None


def nanos_of(text: str, *, param: str) -> int:
    """An amount of USD. Raises InvalidRequest for what is none."""
    try:
        return nanos_from_usd(text)
    except ValueError as fault:
        raise InvalidRequest(f"{param}: {fault}.", param=param) from None


def there_are(names: Iterable[str]) -> str:
    shown = list(names)
    if not shown:
        return "there are none yet: `forebay keys create` makes them."
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"there are: {', '.join(shown[:MOST_NAMED])}{more}."
