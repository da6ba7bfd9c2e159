import pytest

from attendant.server.call import address_of, name_in_certificate


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50112", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:aaaa::1%5D:50112", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:bbbb::9]:7", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:50112", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50112", "fe80::/64"),
        ("unix:", "unix"),
        ("unix:/run/attendant.sock", "unix"),
        ("nonsense", ""),
    ],
)
def test_an_address_without_its_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        ({"x509_common_name": [b"search"], "x509_subject_alternative_name": [b"a"]}, "search"),
        ({"x509_common_name": [b""], "x509_subject_alternative_name": [b"spiffe://example/search", b"b"]},
         "spiffe://example/search"),
        ({"x509_common_name": [b"\xff"]}, "\\xff"),
        ({}, ""),
    ],
)  # fmt: skip
def test_whom_a_certificate_is_for(facts: dict[str, list[bytes]], subject: str) -> None:
    assert name_in_certificate(facts) == subject
