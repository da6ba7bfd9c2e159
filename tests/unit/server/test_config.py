import os
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.config import OPTIONS, ServerConfig, parse_config


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
        max_source_positions=32768,
        max_waiting=1024,
        bulk_seconds=None,
        drain_seconds=25.0,
        log_level="info",
        log_format="text",
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
    "max_source_positions": "99",
    "max_waiting": "1",
    "bulk_seconds": "0.004",
    "drain_seconds": "0.5",
    "log_level": "error",
    "log_format": "json",
    "require_signature": "README.md",
    "load_seconds": "30.0",
    "load_mib": "512",
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
    "max_source_positions": "1.5",
    "max_waiting": "0",
    "bulk_seconds": "0",
    "require_signature": "nowhere.pem",
    "load_seconds": "0",
    "load_mib": "much",
    "drain_seconds": "nan",
    "log_level": "loud",
    "log_format": "xml",
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_by_flag_and_by_variable(option) -> None:  # type: ignore[no-untyped-def]
    text = VALUES[option.name]
    by_flag, by_variable = parse("b", f"{option.flag}={text}"), parse("b", **{option.variable: text})
    assert by_flag == by_variable
    value = getattr(by_flag, option.name)
    assert (os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)) == text
    assert parse("b", f"{option.flag}={text}", **{option.variable: BAD[option.name]}) == by_flag, "the flag goes first"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_bad_value_is_told_with_where_it_came_from(option) -> None:  # type: ignore[no-untyped-def]
    text = BAD[option.name]
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
    with pytest.raises(UserError, match="see python -m server --help"):
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
