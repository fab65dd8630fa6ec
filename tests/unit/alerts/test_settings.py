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
        "https://localhost:9000/hook",
    ],
)
def test_https_goes_anywhere(url: str) -> None:
    require_url(url, AlertSettings())


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.internal/",
        "http://localhost:9000/hook",
        "http://127.0.0.1:2375/containers/x/kill",
        "http://[::1]:80/",
    ],
)
def test_http_is_a_setting_also_to_this_machine(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"alerts\.allow_http") as refused:
        require_url(url, AlertSettings())
    assert refused.value.param == "webhook_url"
    require_url(url, AlertSettings(allow_http=True))


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
    ],
)
def test_what_is_no_address_for_webhooks_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidRequest, match="The URL of a webhook") as refused:
        require_url(url, AlertSettings())
    assert "secret" not in refused.value.message
