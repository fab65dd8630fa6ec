"""Where webhooks may go."""

from __future__ import annotations

import pytest

from forebay.alerts import AlertSettings, require_url
from forebay.core.errors import InvalidRequest


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://10.0.0.7:8443/alerts?room=1",
        "http://localhost:9000/hook",
        "http://127.0.0.1/",
        "http://[::1]:80/",
    ],
)
def test_https_anywhere_and_http_on_this_machine(url: str) -> None:
    require_url(url, AlertSettings())


def test_http_elsewhere_is_a_setting() -> None:
    with pytest.raises(InvalidRequest, match=r"alerts\.allow_http") as refused:
        require_url("http://hooks.internal/", AlertSettings())
    assert refused.value.param == "webhook_url"
    require_url("http://hooks.internal/", AlertSettings(allow_http=True))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "https://",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://user:secret@example.com/",
        "https://example.com/#here",
        "https://example.com:99999/",
        "https://[::1/",
        "https://exa mple.com/",
        "https://example.com/\r\nx: y",
        "https://exämple.com/",
        "https://example.com/" + "a" * 2_000,
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
    ],
)
def test_what_is_no_address_for_webhooks_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidRequest, match="The URL of a webhook") as refused:
        require_url(url, AlertSettings())
    assert "secret" not in refused.value.message
