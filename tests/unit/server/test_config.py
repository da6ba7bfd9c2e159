import os
import re
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.config import OPTIONS, Option, ServerConfig, warn_of_unknown_variables
from attendant_client.command.parser import EPILOG
from tests.configuration import parse_config

# A valid and an invalid text for each description of an option's values.
EXAMPLES = {
    "an address or a name": ("0.0.0.0", " "),
    "a file": ("some/file", " "),
    "a number above 0": ("0.5", "inf"),
    "a number of seconds, 0 or more": ("0.5", "nan"),
    "a number of seconds above 0": ("0.5", "0"),
    "a number of seconds from 0.001 to 1000000": ("0.5", "1e7"),
    f"files that are there, separated by {os.pathsep}": ("README.md", "nowhere.pem"),
    "origins such as https://example.org, separated by commas": ("https://example.org", "example.org"),
}


def parse(*arguments: str, **environment: str) -> ServerConfig:
    return parse_config(arguments, environment)


def examples(option: Option) -> tuple[str, list[str]]:
    """Returns a valid text that is not the default, and invalid ones."""
    must_be = option.kind.must_be
    if number := re.fullmatch(r"a whole number from (\d+) to (\d+)", must_be):
        return number[2], [str(int(number[1]) - 1), "1.5", str(int(number[2]) + 1)]
    if choices := re.fullmatch(r"one of (.*)", must_be):
        return next(choice for choice in choices[1].split(", ") if choice != str(option.default)), ["perhaps"]
    valid, invalid = EXAMPLES[must_be]
    return valid, [invalid]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_read_from_its_flag_and_its_variable(option: Option) -> None:
    text, (wrong, *_) = examples(option)
    flag = f"{option.flag}={text}" if option.kind.unit else option.flag
    by_flag, by_variable = parse("b", flag), parse("b", **{option.variable: text})
    value = getattr(by_flag, option.name)
    assert by_flag == by_variable and value != option.default
    assert (os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)) == text
    assert parse("b", flag, **{option.variable: wrong}) == by_flag, "the flag takes precedence"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_error_names_the_flag_or_the_variable(option: Option) -> None:
    for text in examples(option)[1]:
        with pytest.raises(UserError, match=f"^{option.variable} is '{text}', must be "):
            parse("b", **{option.variable: text})
        if option.kind.unit:
            with pytest.raises(UserError, match=f"^{option.flag} is '{text}', must be "):
                parse("b", f"{option.flag}={text}")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_wrong_value_of_any_option_is_refused_in_one_line_that_names_it(option: Option) -> None:
    for value in ("", " ", "nan", "-1", "9" * 5000, "x\ny"):
        try:
            parse("b", *([f"{option.flag}={value}"] if option.kind.unit else [option.flag]))
        except UserError as error:
            assert str(error).startswith(f"{option.flag} is '") and "must be " in str(error)
            assert "\n" not in str(error) and len(str(error)) < 600


def test_a_host_may_be_in_brackets() -> None:
    assert parse("b", "--host", "[::1]").host == "::1"


def test_origins_need_the_api() -> None:
    with pytest.raises(UserError, match=r"^--http-origins: may .* --no-http .*: ATTENDANT_HTTP_ORIGINS$"):
        parse("b", "--no-http", ATTENDANT_HTTP_ORIGINS="https://example.org")


def test_variables_that_kubernetes_injects_are_ignored() -> None:
    injected = {
        "ATTENDANT_PORT": "tcp://10.0.0.1:50051",
        "ATTENDANT_METRICS_PORT": "tcp://10.0.0.2:9090",
        "ATTENDANT_SERVICE_HOST": "10.0.0.1",
        "ATTENDANT_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert parse("b", **injected) == parse("b") == parse("b", ATTENDANT_PORT="") == ServerConfig(bundles=(Path("b"),))


@pytest.mark.parametrize(
    ("variable", "value", "nearest"),
    [
        ("ATTENDANT_MAXROWS", "8", "ATTENDANT_MAX_ROWS"),
        ("ATTENDANT_METRICS", "8", "ATTENDANT_METRICS_PORT"),
        ("ATTENDANT_BUNDLE", "a", "ATTENDANT_BUNDLES"),
        ("ATTENDANT_COLOUR", "red", None),
    ],
)
def test_a_variable_without_an_option_is_logged(
    variable: str, value: str, nearest: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    known = dict.fromkeys(re.findall(r"ATTENDANT_\w+", EPILOG), "x") | {
        **dict.fromkeys((option.variable for option in OPTIONS), "x"),
        "ATTENDANT_SERVICE_PORT_GRPC": "50051",
        "ATTENDANT_PORT_50051_TCP_ADDR": "10.0.0.1",
        "ATTENDANT_CANARY_SERVICE_HOST": "10.0.0.1",
        "ATTENDANT_CANARY_PORT": "tcp://10.0.0.1:50051",
        "OTHER": "x",
    }
    warn_of_unknown_variables({**known, variable: value})
    (record,) = caplog.records
    assert record.variable == variable
    assert record.message.endswith(f"; did you mean {nearest}?") == (nearest is not None)


def test_bundles_are_read_from_the_environment() -> None:
    assert parse(ATTENDANT_BUNDLES="a:b/c").bundles == (Path("a"), Path("b/c"))
    assert parse("d", ATTENDANT_BUNDLES="a:b/c").bundles == (Path("d"),)
    with pytest.raises(UserError, match=r"no bundle: .*ATTENDANT_BUNDLES"):
        parse()
    with pytest.raises(UserError, match="argument BUNDLE: is empty, must be a path"):
        parse("a", "")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--colour",), "see attendant serve --help"),
        (("--port",), "see attendant serve --help"),
        (("--metrics", "9"), "did you mean --metrics-port?"),
        (("--waiting=9",), "did you mean --max-waiting?"),
    ],
)
def test_an_unknown_option_is_refused(arguments: tuple[str, ...], remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        parse("b", *arguments)
    assert remedy in str(caught.value)


def test_help_shows_defaults_units_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert option.flag in text and option.variable in text and option.kind.unit in text
        assert f"(default: {option.default_text})" in text
    assert "ATTENDANT_BUNDLES" in text
