"""Tests of the command's failures: one line and an exit status."""

import re
from argparse import Namespace

import grpc
import pytest

from attendant_client.command import main
from attendant_client.command.rendering import explain
from attendant_client.errors import AttendantError
from tests.unit.client.fake_server import Failure, Served

NO_RETRY = (("grpc-retry-pushback-ms", "-1"),)

pytestmark = pytest.mark.usefixtures("addressed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "--stream"], "--stream: can't be used with standard input"),
        (["-", "--request-id", "x"], "--request-id: can't be used with standard input"),
        (["a", "--skip", "1"], "--skip: skips lines of standard input"),
        (["a", "--stream", "--json"], "--stream: excludes --json"),
        (["a", "--links", "--json"], "--links: are printed after texts"),
    ],
)
def test_incompatible_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "attendant generate: the following arguments are required: TEXT"),
        (["generate", "a", "--beam-size", "0"], "--beam-size: '0' is not a whole number of at least 1"),
        (["generate", "a", "--target-prefix", "\udcff"], "--target-prefix: '\\udcff' is not UTF-8"),
        (["generate", "a", "-"], "attendant generate: `-` reads the sources from standard input"),
        (["generate", "\udcff"], "is not UTF-8"),
        (["health", "--root-certificates", "/nowhere"], "'/nowhere' can't be read: No such file or directory"),
        (["generate", "-5,000"], "a text that begins with a dash goes after all options and `--`, "),
        (["generate", "-hello"], "a text that begins with a dash goes after all options and `--`, "),
        (["generate", "--model", "-x", "a"], "a value after `=` (see"),
        (["generate", "-h of Planck"], "a text that begins with a dash goes after all options and `--`"),
        (["generate", "a", "--beamsize=4"], "there is no option --beamsize; did you mean --beam-size?"),
        (["generate", "--server", "a:1", "a"], "there is no option --server; did you mean --server-name?"),
        (["score", "a", "--beam-size", "4", "b"], "attendant score: there is no option --beam-size (see"),
        (["generate", "a", "--json", "b"], "'b' is one argument too many"),
        (["generat", "a"], "there is no command 'generat'; did you mean generate?"),
        (["health", "--target", "http://localhost:9090"], "is a URL; give the server as HOST:PORT"),
        (["health", "--tls", "--insecure"], "--insecure excludes --tls, certificates and --server-name"),
        (["health", "--client-key", __file__], "--client-certificate and --client-key need each other"),
        (["health", "--token-file", __file__], "does not hold one line of printable ASCII"),
        (
            ["--target", "localhost:1", "health"],
            "--target: options follow the command, as in attendant health --target",
        ),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert line.endswith("--help)")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("ATTENDANT_TARGET", "http://localhost:9090", "'http://localhost:9090': is a URL; "),
        ("ATTENDANT_TOKEN_FILE", "/nowhere", "'/nowhere' can't be read: No such file or directory"),
    ],
)
def test_a_wrong_variable_is_named(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        main(["health"])
    message = capsys.readouterr().err
    assert (ended.value.code, reason in message, f"(from {variable})" in message) == (2, True, True)


def test_a_token_that_can_not_be_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTENDANT_TOKEN", "se\ncret")
    with pytest.raises(SystemExit) as ended:
        main(["generate", "a"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "ATTENDANT_TOKEN holds characters" in err
    assert "cret" not in err


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (
            Failure(grpc.StatusCode.UNAUTHENTICATED, "no token"),
            1,
            "no token; --token-file or ATTENDANT_TOKEN has the token that is sent",
        ),
        (Failure(grpc.StatusCode.NOT_FOUND, "no such model"), 2, "no such model"),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailers=NO_RETRY), 1, "full"),
        (Failure(grpc.StatusCode.INTERNAL, "internal error"), 1, "internal error"),
    ],
    ids=lambda value: value.code.name if isinstance(value, Failure) else "",
)
def test_each_failure_has_its_message_and_exit_status(
    server: Served, capsys: pytest.CaptureFixture[str], failure: Failure, status: int, words: str
) -> None:
    server.seq2seq.failures.extend([failure, failure])
    assert main(["generate", "a"]) == status
    assert main(["models"]) == status
    output, lines = capsys.readouterr()
    # The line about an internal error includes the request's id in the server's log.
    assert (output, re.sub(r" \([0-9a-f]{32}\)", "", lines)) == ("", f"attendant: {words}\n" * 2)


def test_an_exceeded_deadline_names_the_timeout_option(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "slow", "--timeout", "0.1"]) == 1
    expected = f"attendant: no answer from {server.target} within 0.1 s; --timeout gives it more time\n"
    assert capsys.readouterr().err == expected


def test_control_characters_in_a_servers_message_are_escaped() -> None:
    error = AttendantError(grpc.StatusCode.INTERNAL, "a\nattendant: forged\x1b[2J\x00\u200b\u202e é")
    assert explain(error, Namespace(target="here")) == "a attendant: forged\\u001b[2J\\u0000\\u200b\\u202e é"
