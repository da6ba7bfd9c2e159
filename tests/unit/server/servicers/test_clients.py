from types import SimpleNamespace

import pytest

from attendant.server.servicers.clients import client_of


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:192.0.2.7:50112", "192.0.2.7"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:50112", "192.0.2.7"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:50112", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50112", "fe80::/64"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_the_address_without_its_port(peer: str, client: str) -> None:
    assert client_of(SimpleNamespace(peer=lambda: peer)) == client
