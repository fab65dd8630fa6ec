"""What pip's words become; pip itself runs in test_fetch.py."""

from __future__ import annotations

import pytest

from forebay.catalog.download import explained


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("/bin/python: No module named pip", "install pip"),
        ("ERROR: something else\nERROR: the last word", "the last word"),
        ("", "it said nothing"),
        ("WARNING: Retrying after NewConnectionError\nERROR: No matching distribution", "network"),
        ("error: incomplete-download\n\n× Download failed\nhint: x", "(Download failed)"),
        ("ERROR: No matching distribution found for x==1", "does not have it or was not reached"),
        ("ERROR: Wheel 'x' located at x.whl is invalid.", "arrived damaged"),
    ],
)
def test_what_pip_says_becomes_one_line(log: str, told: str) -> None:
    message = str(explained("x==1", log))
    assert told in message
    assert "\n" not in message
