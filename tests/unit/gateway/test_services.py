from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from forebay.gateway import GatewaySettings, Readiness


def test_every_setting_has_a_help_sentence():
    for setting in fields(GatewaySettings):
        assert setting.metadata["help"].endswith(".")


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_setting_that_makes_no_sense_is_refused(value):
    with pytest.raises(ValueError, match="body_seconds"):
        replace(GatewaySettings(), body_seconds=value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("llm.example.org", "public_url is 'llm.example.org', but must be an address"),
        ("ftp://llm.example.org", "must be an address"),
        ("https://", "must be an address"),
        ("https://me:secret@llm.example.org", "must be an address"),
        ("https://llm.example.org?a=b", "must be an address"),
        ("https://llm.example.org/a b", "must be an address"),
        ("https://llm.example.org/v1", "leave out the /v1 at its end"),
        ("https://llm.example.org/v1/", "leave out the /v1 at its end"),
    ],
)
def test_a_public_url_that_is_no_address_is_refused(url, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        replace(GatewaySettings(), public_url=url)


def test_a_public_url_may_have_a_port_and_a_path():
    for url in ("", "http://[::1]:8080", "https://example.org/llm/"):
        assert replace(GatewaySettings(), public_url=url).public_url == url


def test_an_origin_that_is_none_is_refused_with_the_name_of_the_setting():
    with pytest.raises(ValueError, match=r"cors_origins: 'a\.example' is no origin"):
        replace(GatewaySettings(), cors_origins=("https://b.example", "a.example"))


def test_a_proxy_that_is_no_address_is_refused_with_the_name_of_the_setting():
    with pytest.raises(ValueError, match=r"trusted_proxies: 'lb\.internal' is no address"):
        replace(GatewaySettings(), trusted_proxies=("10.0.0.0/8", "lb.internal"))


def test_readiness_is_having_no_reason_against_it():
    assert Readiness().ready
    assert not Readiness(("x",)).ready
