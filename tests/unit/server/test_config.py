import os
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.config import OPTIONS, ServerConfig
from tests.configuration import parse_config


def parse(*arguments: str, **environment: str) -> ServerConfig:
    return parse_config(arguments, environment)


def test_defaults() -> None:
    assert parse("b") == ServerConfig(
        bundles=(Path("b"),),
        host="127.0.0.1",
        port=50051,
        metrics_port=9090,
        precision=None,
        provider="cpu",
        cuda_graphs="off",
        threads=None,
        workers=1,
        max_rows=256,
        hang_seconds=5.0,
        max_restarts=10,
        max_source_positions=32768,
        max_waiting=1024,
        bulk_seconds=None,
        unread_seconds=30.0,
        drain_seconds=25.0,
        tls_certificate=None,
        tls_key=None,
        tls_client_ca=None,
        tokens=None,
        admin_tokens=None,
        repository_seconds=2.0,
        health="open",
        reflection=None,
        client_requests_per_second=None,
        client_bytes_per_second=None,
        log_level="info",
        log_format="text",
        audit_level="info",
        audit_format=None,
        log_texts="off",
    )


VALUES = {
    "host": "0.0.0.0",
    "port": "0",
    "metrics_port": "65535",
    "precision": "int8",
    "provider": "cuda",
    "cuda_graphs": "on",
    "threads": "3",
    "workers": "2",
    "max_rows": "7",
    "hang_seconds": "0.5",
    "max_restarts": "0",
    "max_source_positions": "99",
    "max_waiting": "1",
    "max_connections": "10",
    "max_calls_per_connection": "10",
    "max_streams": "10",
    "connection_seconds": "300.0",
    "max_wait_seconds": "2.5",
    "max_client_requests": "4",
    "max_client_rows": "8",
    "light_rows": "64",
    "bulk_seconds": "0.004",
    "unread_seconds": "12.5",
    "drain_seconds": "0.5",
    "tls_certificate": "tls/server.pem",
    "tls_key": "tls/server.key",
    "tls_client_ca": "tls/clients.pem",
    "tokens": "tokens.txt",
    "admin_tokens": "admins.txt",
    "repository_seconds": "0.5",
    "health": "closed",
    "reflection": "off",
    "client_requests_per_second": "0.5",
    "client_bytes_per_second": "65536.0",
    "log_level": "error",
    "log_format": "json",
    "audit_level": "warning",
    "audit_format": "json",
    "no_open_inference": "on",
    "signed_names": "on",
    "log_texts": "on",
    "log_requests": "on",
    "traces": "on",
    "require_signature": "README.md",
    "load_seconds": "30.0",
    "load_mib": "512",
    "no_http": "on",
    "http_origins": "https://example.org",
}
BAD = {
    "host": " ",
    "port": "65536",
    "metrics_port": "-1",
    "precision": "fp8",
    "provider": "tpu",
    "cuda_graphs": "maybe",
    "threads": "0",
    "workers": "0",
    "max_rows": "many",
    "hang_seconds": "0",
    "max_restarts": "-1",
    "max_source_positions": "1.5",
    "max_waiting": "0",
    "max_connections": "0",
    "max_calls_per_connection": "none",
    "max_streams": "0",
    "connection_seconds": "0",
    "max_wait_seconds": "0",
    "max_client_requests": "0",
    "max_client_rows": "-1",
    "light_rows": "0",
    "bulk_seconds": "0",
    "unread_seconds": "0",
    "repository_seconds": "-1",
    "admin_tokens": " ",
    "audit_level": "perhaps",
    "audit_format": "xml",
    "no_open_inference": "perhaps",
    "signed_names": "perhaps",
    "log_texts": "perhaps",
    "log_requests": "often",
    "traces": "some",
    "require_signature": "nowhere.pem",
    "load_seconds": "0",
    "load_mib": "much",
    "drain_seconds": "nan",
    "tls_certificate": " ",
    "tls_key": " ",
    "tls_client_ca": " ",
    "tokens": " ",
    "health": "ajar",
    "reflection": "on",
    "client_requests_per_second": "0",
    "client_bytes_per_second": "inf",
    "log_level": "loud",
    "log_format": "xml",
    "no_http": "perhaps",
    "http_origins": "example.org",
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_by_flag_and_by_variable(option) -> None:  # type: ignore[no-untyped-def]
    text = VALUES[option.name]
    flag = f"{option.flag}={text}" if option.kind.unit else option.flag
    by_flag, by_variable = parse("b", flag), parse("b", **{option.variable: text})
    assert by_flag == by_variable
    value = getattr(by_flag, option.name)
    assert (os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)) == text
    assert parse("b", flag, **{option.variable: BAD[option.name]}) == by_flag, "the flag goes first"


def test_origins_need_the_api() -> None:
    with pytest.raises(UserError, match="--http-origins: may use the API over HTTP, which --no-http takes away"):
        parse("b", "--no-http", ATTENDANT_HTTP_ORIGINS="https://example.org")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_bad_value_is_told_with_where_it_came_from(option) -> None:  # type: ignore[no-untyped-def]
    text = BAD[option.name]
    if option.kind.unit:
        with pytest.raises(UserError, match=f"^{option.flag} is '{text}', must be "):
            parse("b", f"{option.flag}={text}")
    with pytest.raises(UserError, match=f"^{option.variable} is '{text}', must be "):
        parse("b", **{option.variable: text})


def test_what_kubernetes_injects_is_not_ours() -> None:
    injected = {
        "ATTENDANT_PORT": "tcp://10.0.0.1:50051",
        "ATTENDANT_METRICS_PORT": "tcp://10.0.0.2:9090",
        "ATTENDANT_SERVICE_HOST": "10.0.0.1",
        "ATTENDANT_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert parse("b", **injected) == parse("b")
    assert parse("b", ATTENDANT_PORT="") == parse("b")


def test_bundles_from_the_environment() -> None:
    assert parse(ATTENDANT_BUNDLES="a:b/c").bundles == (Path("a"), Path("b/c"))
    assert parse("d", ATTENDANT_BUNDLES="a:b/c").bundles == (Path("d"),)
    with pytest.raises(UserError, match=r"no bundle: .*ATTENDANT_BUNDLES"):
        parse()


@pytest.mark.parametrize("arguments", [("b", "--colour"), ("b", "--port"), ("b", "--metrics", "9")])
def test_an_option_that_is_not_there(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="see attendant serve --help"):
        parse(*arguments)


def test_help_shows_defaults_units_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert option.flag in text and option.variable in text and option.kind.unit in text
        assert f"(default: {option.default_text})" in text
    assert "ATTENDANT_BUNDLES" in text
