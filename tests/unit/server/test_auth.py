"""Tests of clients' addresses, names and rates, of options that need another one, and of the log's warnings."""

import os
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.auth import Rates, open_access
from attendant.server.call import address_of, name_in_certificate
from attendant.server.config import ServerConfig
from tests.certificates import new_authority
from tests.configuration import parse_config


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def num_taken(rates: Rates, clock: Clock, *, seconds: float, client: str = "a", num_bytes: int = 1) -> int:
    """Returns how many of 1000 requests, spread evenly over the seconds, are admitted."""
    let_in = 0
    for _ in range(1000):
        let_in += rates.take(client, num_bytes) == 0
        clock.now += seconds / 1000
    return let_in


def test_requests_are_admitted_at_the_clients_rate() -> None:
    clock = Clock()
    rates = Rates(requests_per_second=20, clock=clock)
    assert 20 <= num_taken(rates, clock, seconds=0) <= 21, "a second's worth at once"
    assert 199 <= num_taken(rates, clock, seconds=10) <= 201
    clock.now += 1000
    assert 20 <= num_taken(rates, clock, seconds=0) <= 21, "unused rate is not saved up"
    assert 10 <= num_taken(Rates(requests_per_second=0.1, clock=clock), clock, seconds=100) <= 11


def test_a_client_that_waits_for_the_retry_delay_is_admitted() -> None:
    clock = Clock()
    rates = Rates(requests_per_second=3, bytes_per_second=1000, clock=clock)
    for _ in range(50):
        wait = rates.take("a", 700)
        clock.now += wait
        assert wait == 0 or rates.take("a", 700) == 0


def test_a_large_request_is_admitted_then_charged() -> None:
    clock = Clock()
    rates = Rates(bytes_per_second=1000, clock=clock)
    assert rates.take("a", 5000) == 0
    assert rates.take("a", 1) == 4.0
    assert 95 <= num_taken(rates, clock, seconds=100, num_bytes=1000) <= 97, "after four seconds"
    rates = Rates(requests_per_second=10, clock=clock)
    assert rates.take("a", 1, num_requests=25) == 0
    assert 1.4 < rates.take("a", 1) < 1.6, "a list counts as the requests that it holds"


def test_the_accounts_are_bounded_and_active_clients_are_kept() -> None:
    clock = Clock()
    rates = Rates(requests_per_second=5, max_clients=8, clock=clock)
    num_taken(rates, clock, seconds=0, client="a")
    for number in range(1000):
        rates.take("a", 1)
        rates.take(f"stranger {number}", 1)
        assert len(rates) <= 8
    assert rates.take("a", 1) > 0 and rates.take("b", 1) == 0


def test_a_client_may_have_limits_of_its_own() -> None:
    clock = Clock()
    own = {"slow": (2.0, None)}
    rates = Rates(20, own_limits=lambda client: own.get(client, (None, None)), clock=clock)
    assert 2 <= num_taken(rates, clock, seconds=0, client="slow") <= 3
    assert 20 <= num_taken(rates, clock, seconds=0, client="other") <= 21
    assert rates.limited and Rates(own_limits=lambda client: (None, None)).limited


def test_administrators_have_the_limits_in_their_file(tmp_path: Path) -> None:
    admins, tokens = tmp_path / "admins", tmp_path / "tokens"
    admins.write_text("root root-token-0123456789 requests_per_second=2\n")
    tokens.write_text("mail mail-token-0123456789 requests_per_second=3\n")
    access = open_access(ServerConfig(bundles=(), tokens=tokens, admin_tokens=admins))
    for client, rate in (("root", 2), ("mail", 3)):
        assert rate <= num_taken(access.rates, Clock(), seconds=0, client=client) <= rate + 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--tls-key", r"^--tls-certificate and --tls-key need each other"),
        ("--tls-certificate", r"^--tls-certificate and --tls-key need each other"),
        ("--tls-client-ca", r"^--tls-client-ca needs --tls-certificate and --tls-key: "),
        ("--health=closed", r"^--health is 'closed', but the server accepts no credentials; add --tokens$"),
        ("--reflection=closed", r"^--reflection is 'closed', but the server accepts no credentials"),
    ],
)
def test_options_that_need_another_one_are_refused_alone(option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_access(parse_config(["bundle", option if "=" in option else f"{option}=file"], {}))


@pytest.mark.parametrize("variable", ["HEALTH", "REFLECTION", "TLS_CERTIFICATE", "TLS_KEY", "TLS_CLIENT_CA"])
def test_a_variable_that_needs_another_option_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ATTENDANT_{variable}", "closed")
    with pytest.raises(UserError, match=f"; set in the environment: ATTENDANT_{variable}$"):
        open_access(parse_config(["bundle"], os.environ))


@pytest.mark.parametrize(
    ("host", "options", "warned"),
    [
        ("127.0.0.1", "", []),
        ("::1", "", []),
        ("LOCALHOST", "", []),
        ("127.1", "", []),
        ("::ffff:127.0.0.1", "", []),
        ("0.0.0.0", "", ["unencrypted", "open"]),
        ("model.example", "tokens", ["unencrypted"]),
        ("::", "tls", ["open"]),
        ("0.0.0.0", "tls tokens", []),
        ("0.0.0.0", "tls clients", []),
    ],
)
def test_the_log_warns_of_a_port_that_other_machines_reach(
    host: str, options: str, warned: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, tokens = new_authority(tmp_path), tmp_path / "tokens"
    tokens.write_text("search search-token-0123456789\n")
    certificate, key = authority.issue("server")
    access = open_access(
        ServerConfig(
            bundles=(),
            tokens=tokens if "tokens" in options else None,
            tls_certificate=certificate if "tls" in options else None,
            tls_key=key if "tls" in options else None,
            tls_client_ca=authority.certificate if "clients" in options else None,
        )
    )
    access.warn_if_exposed(host)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == warned


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
def test_an_address_is_returned_without_its_port(peer: str, address: str) -> None:
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
def test_a_client_is_named_by_its_certificate(facts: dict[str, list[bytes]], subject: str) -> None:
    assert name_in_certificate(facts) == subject
