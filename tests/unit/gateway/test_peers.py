from __future__ import annotations

import pytest

from forebay.gateway.peers import Peers, check_networks, counted


def scope(host, *said):
    headers = [(b"x-forwarded-for", value.encode()) for value in said]
    return {"client": (host, 1234) if host else None, "headers": headers}


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("no address", "unknown"),
    ],
)
def test_an_ipv6_client_is_its_network_and_what_is_no_address_is_one_of_its_own(host, address):
    assert counted(host) == address


@pytest.mark.parametrize("lie", ["192.0.2.99", "10.0.0.1", "x", ", ,"])
def test_a_client_that_forwards_itself_is_who_its_connection_says(lie):
    for trusted in ((), ("10.0.0.0/8",)):
        assert Peers(trusted).client(scope("192.0.2.7", lie)) == "192.0.2.7"


@pytest.mark.parametrize(
    ("said", "client"),
    [
        (("192.0.2.7",), "192.0.2.7"),
        (("192.0.2.99, 192.0.2.7",), "192.0.2.7"),
        (("192.0.2.99", "192.0.2.7"), "192.0.2.7"),
        (("192.0.2.7, 10.1.2.3",), "192.0.2.7"),
        (("192.0.2.7 ,::ffff:10.1.2.3",), "192.0.2.7"),
        (("10.1.2.3",), "10.0.0.1"),
        ((), "10.0.0.1"),
        (("",), "10.0.0.1"),
        (("2001:db8::7",), "2001:db8::/64"),
        (("192.0.2.7:5555",), "192.0.2.7"),
        (("[2001:db8::7]:5555, 10.1.2.3:80",), "2001:db8::/64"),
        (("garbage",), "unknown"),
        (("192.0.2.99, garbage",), "unknown"),
        (("1.1.1.1," * 5000 + "10.0.0.2",), "1.1.1.1"),
    ],
)
def test_a_proxy_is_believed_up_to_the_last_address_that_is_no_proxy(said, client):
    assert Peers(("10.0.0.0/8",)).client(scope("10.0.0.1", *said)) == client


def test_without_a_peer_there_is_an_address_all_the_same():
    assert Peers(()).client(scope(None)) == "unknown"


def test_what_is_no_network_is_named():
    with pytest.raises(ValueError, match="'proxy' is no address or network"):
        check_networks(["10.0.0.0/8", "proxy"])
