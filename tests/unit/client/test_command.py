"""Tests of the command in this process: its requests, its output, and failures as one line and an exit status."""

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import grpc
import numpy as np
import pytest

from attendant_client import Timings
from attendant_client.command import main
from attendant_client.command.rendering import explain
from attendant_client.errors import AttendantError
from attendant_client.types import DecodingFields, Sampling, options_of
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.unit.client.fake_server import Failure, Served, violation

pytestmark = pytest.mark.usefixtures("addressed")


@pytest.fixture
def standard_input(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that replaces standard input, including its descriptor, with the given bytes."""
    kept = os.dup(0)

    def become(content: bytes) -> None:
        (tmp_path / "input").write_bytes(content)
        descriptor = os.open(tmp_path / "input", os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)

    yield become
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["slow", "b"], "SLOW\nB\n"),
        (["-5", "- a", "--", "-a", "--beam-size"], "-5\n- A\n-A\n--BEAM-SIZE\n"),
        (["a\nb"], "A\nB\n"),
        (["a\nb", "--num-hypotheses", "2"], "1\t-0.5000\tA B\n2\t-1.5000\tA B!\n"),
        (
            ["a", "b", "--num-hypotheses", "2"],
            "a\t1\t-0.5000\tA\na\t2\t-1.5000\tA!\nb\t1\t-0.5000\tB\nb\t2\t-1.5000\tB!\n",
        ),
        (["ab", "--links"], "AB\t0-0 1-1\n"),
        (["ab", "c", "--stream"], "AB\nC\n"),
        (["", "b", "--stream"], "\nB\n"),
        (["a\nb", "--stream"], "A\nB\n"),
        (["ab", "--stream", "--num-hypotheses", "2"], "AB\n1\t-0.5000\tAB\n2\t-1.5000\tAB!\n"),
        (["ab", "--stream", "--links"], "AB\nAB\t0-0 1-1\n"),
        (["ab", "--stream", "--trace"], "AB\nAB\n(this server sends no traces)\n"),
    ],
)
def test_answers_are_printed_in_the_order_of_the_texts(
    arguments: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments]) == 0
    assert capsys.readouterr() == (output, "")


def test_the_line_of_a_streamed_answer_that_fails_is_blank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "bad", "b", "--stream"]) == 2
    assert capsys.readouterr() == ("\nB\n", "attendant: text 1: text: 'bad' is bad\n")


EVERY_OPTION = """
--beam-size 4 --num-hypotheses 2 --alternatives --min-length 0 --max-length 9 --min-length-ratio 0.5
--max-length-ratio 1.5 --length-penalty 0.5 --length-penalty-offset 0 --coverage-penalty 0.25
--target-prefix-text open --repetition-penalty 1.25 --no-repeat-ngram-size 3 --patience 2 --suppress-unk
--temperature 0.75 --top-k 5 --top-p 0.875 --seed 18446744073709551615 --replace-unknowns
--protect-spans --no-split-sentences
"""
OF_SEVERAL_WORDS = "--target-prefix", "A  BC", "--masked-source-positions", "1  2"


def test_a_request_id_reaches_the_server(server: Served) -> None:
    assert main(["generate", "a", "--request-id", "mine"]) == 0
    assert main(["score", "a", "A", "--request-id", "mine"]) == 0
    assert [request.request_id for request in server.seq2seq.requests] == ["mine", "mine"]


def test_options_reach_the_server_and_nothing_else_does(server: Served) -> None:
    chosen = ["--model", "m", "--model-version", "7"]
    assert main(["generate", "ab", *chosen, *EVERY_OPTION.split(), *OF_SEVERAL_WORDS]) == 0
    assert main(["generate", "a  b c", "--tokens"]) == 0
    assert main(["generate", "ab", "--sample"]) == 0
    assert main(["generate", "ab", "--trace"]) == 0
    assert main(["generate", "ab", "--trace-candidates", "7", "--stream"]) == 0
    assert main(["score", "--", "-5", "-five"]) == 0
    decoding = pb.DecodingOptions(
        beam_size=4,
        num_hypotheses=2,
        alternatives=True,
        min_length=0,
        max_length=9,
        min_length_ratio=0.5,
        max_length_ratio=1.5,
        length_penalty=0.5,
        length_penalty_offset=0,
        coverage_penalty=0.25,
        repetition_penalty=1.25,
        no_repeat_ngram_size=3,
        patience=2,
        suppress_unk=True,
        target_prefix=pb.Tokens(tokens=["A", "BC"]),
        target_prefix_text="open",
        sampling=pb.SamplingOptions(temperature=0.75, top_k=5, top_p=0.875, seed=2**64 - 1),
        masked_source_positions=[1, 2],
        protect_spans=True,
        split_sentences=False,
    )
    assert {field.name for field, _ in decoding.ListFields()} == set(decoding.DESCRIPTOR.fields_by_name)
    generated, tokens, drawn, *traced, scored = server.seq2seq.requests
    assert (generated.text, generated.model, generated.version, generated.decoding) == ("ab", "m", "7", decoding)
    assert generated.output == pb.OutputOptions(replace_unknowns=True)
    assert tokens.tokens.tokens == ["a", "b", "c"]
    assert tokens.decoding == pb.DecodingOptions()
    assert tokens.output == pb.OutputOptions()
    assert drawn.decoding == pb.DecodingOptions(sampling=pb.SamplingOptions())
    assert [request.output.trace for request in traced] == [3, 7]
    assert (scored.source_text, scored.target_text) == ("-5", "-five")


def test_json_has_all_fields_of_answers_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "ab", "bad", "--json", "--attention"]) == 2
    answer, failed = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    (hypothesis,) = answer["hypotheses"]
    assert hypothesis | {"attention": len(hypothesis["attention"])} == {
        "text": "AB",
        "tokens": ["A", "B"],
        "score": -0.5,
        "log_prob": -1.0,
        "token_log_probs": [-0.25, -0.25, -0.25],
        "attention": 3,
        "finish_reason": "EOS",
        "confidence": None,
    }
    assert (answer["number"], answer["source"], answer["source_tokens"]) == (1, "ab", ["a", "b"])
    assert answer["timings"].keys() == {field.name for field in fields(Timings)}
    assert answer["error"] is answer["trace"] is None and answer["warnings"] == []
    assert list(failed) == list(answer)
    assert failed["error"] == {
        "code": "INVALID_ARGUMENT",
        "message": "text: 'bad' is bad",
        "violations": [{"field": "text", "description": "is bad"}],
    }


def test_standard_input_line_by_line(
    standard_input: Callable[[bytes], None], server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    standard_input(b"ab\n\nbad\r\n\xff\n  \nslow\nlast")
    assert main(["generate", "-", "--concurrency", "2"]) == 2
    out, err = capsys.readouterr()
    assert out == "AB\n\n\n\n\nSLOW\nLAST\n"
    assert err.splitlines() == ["attendant: line 3: text: 'bad' is bad", "attendant: line 4: is not UTF-8"]
    assert sorted(request.text for request in server.seq2seq.requests) == ["ab", "bad", "last", "slow"]


@pytest.mark.parametrize(
    ("content", "skip"), [(b"a\n\nb\nc\n", "2"), (b"\xef\xbb\xbfb\nc\n", "0")], ids=["skipped", "byte order mark"]
)
def test_lines_that_were_answered_and_a_byte_order_mark_are_left_out(
    content: bytes, skip: str, standard_input: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    standard_input(content)
    assert main(["generate", "-", "--skip", skip]) == 0
    assert capsys.readouterr().out == "B\nC\n"


def test_standard_input_as_json_keeps_the_lines(
    standard_input: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    standard_input(b"ab\n\n\xff\n")
    assert main(["generate", "-", "--json"]) == 2
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["number"] for answer in answers] == [1, 2, 3]
    assert [answer["source"] for answer in answers] == ["ab", "", None]
    assert [len(answer["hypotheses"]) for answer in answers] == [1, 0, 0]
    assert len({tuple(answer) for answer in answers}) == 1


@pytest.mark.parametrize(
    ("field", "description", "output"),
    [
        ("decoding.beam_size", "is 9, must be 1 to 8", ""),
        ("decoding.min_length_ratio", "is 2, 60 tokens of this source, must be 0 to 48 tokens", "\nB\n"),
        ("text", "is 0 tokens long", "\nB\n"),
    ],
)
def test_an_error_of_every_line_ends_the_run_and_that_of_one_line_does_not(
    field: str,
    description: str,
    output: str,
    standard_input: Callable[[bytes], None],
    server: Served,
    capsys: pytest.CaptureFixture[str],
) -> None:
    details = (violation(field, description),)
    server.seq2seq.item_failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "as told", details))
    standard_input(b"a\nb\n")
    assert main(["generate", "-"]) == 2
    assert capsys.readouterr() == (output, "attendant: line 1: as told\n")


def test_score_prints_log_probs_and_perplexities(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "ab", "X Y"]) == 0
    assert (
        capsys.readouterr().out
        == "-1.5000\tperplexity 1.649 per token, 1.649 per word\nX\t-0.5000\nY\t-0.5000\n</s>\t-0.5000\n"
    )
    assert main(["score", "a b", "X Y", "--tokens", "--no-eos", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["token_log_probs"] == [-0.5, -0.5] and score["perplexity"] == pytest.approx(np.exp(0.5))
    assert server.seq2seq.requests[1].target_tokens.tokens == ["X", "Y"]
    assert main(["score", "ab", "X", "--attention"]) == 0
    assert "   X ██·" in capsys.readouterr().out.splitlines()


def test_models_prints_the_facts_of_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fake  version 0123456789ab, fp32 on cpu\n")
    assert "  measured      wer 33.5 on 12000 examples (test words)\n" in out
    assert "  Spells words.\n  example       ab -> a b\n" in out
    assert "max_beam_size 8" in out
    assert "\nother  version" in out
    assert main(["models", "fake", "--json"]) == 0
    (model,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert model["manifest"] == {"name": "fake"}
    assert model["limits"]["max_beam_size"] == 8
    assert main(["models", "none"]) == 2
    assert capsys.readouterr().err == "attendant: model: 'none' is not served here\n"


def test_control_characters_of_a_manifest_are_shown_escaped(
    server: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = pb.Model(name="fake\x1b[2J", version="0123456789ab", architecture={"cell": "\x9b31m"})
    hostile.evaluation.add(metric="wer\u202e", value=1, protocol="test\nSERVING", num_examples=1)
    monkeypatch.setattr(server.seq2seq, "_model", lambda *name, **version: hostile)
    assert main(["models", "fake"]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    for escape in ("fake\\u001b[2J", "\\u009b31m", "wer\\u202e", "test\\nSERVING"):
        assert escape in out
    assert main(["models", "fake", "--json"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_health_prints_the_status_and_sets_the_exit_status(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health"]) == 0
    server.health.enter_graceful_shutdown()
    assert main(["health"]) == 1
    assert capsys.readouterr().out == "SERVING\nNOT_SERVING\n"


def test_help_shows_defaults_and_environment(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (f"the server (default: {server.target})", "(default: 30)", "(default: 512)", "ATTENDANT_TOKEN"):
        assert words in out
    for group in (DecodingFields, Sampling):
        for name, (_, option) in options_of(group).items():
            assert name == "sampling" or f"--{name.replace('_', '-')} " in out
            assert option.meaning in out
            assert f"(default: {option.default})" in out or not option.default


def test_characters_outside_an_ascii_terminal_are_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["generate", "é", "--attention"]) == 0
        assert main(["generate", "é😀", "--json"]) == 0
    *lines, as_json = (tmp_path / "out").read_text(encoding="ascii").splitlines()
    assert lines[0] == "\\xc9"
    assert any("##" in line for line in lines)
    assert json.loads(as_json)["source"] == "é😀"


NO_RETRY = (("grpc-retry-pushback-ms", "-1"),)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "attendant generate: the following arguments are required: TEXT"),
        (["generate", "a", "--beam-size", "0"], "--beam-size: '0' is not a whole number of at least 1"),
        (["generate", "a", "--target-prefix", "\udcff"], "--target-prefix: '\\udcff' is not UTF-8"),
        (["generate", "a", "--trace-candidates", "33"], "--trace-candidates: "),
        (["generate", "a", "--masked-source-positions", "0,1"], "--masked-source-positions: "),
        (["generate", "a", "--bundle", ""], "--bundle: is empty, must be a path"),
        (["generate", "a", "-"], "attendant generate: `-` reads the sources from standard input"),
        (["generate", "\udcff"], "is not UTF-8"),
        (["health", "--root-certificates", "/nowhere"], "'/nowhere' can't be read: No such file or directory"),
        (["generate", "-5,000"], "a text that begins with a dash goes after all options and `--`, "),
        (["generate", "--model", "-x", "a"], "a value after `=` (see"),
        (["generate", "a", "--beamsize=4"], "there is no option --beamsize; did you mean --beam-size?"),
        (["generate", "--server", "a:1", "a"], "there is no option --server; did you mean --server-name?"),
        (["score", "a", "--beam-size", "4", "b"], "attendant score: there is no option --beam-size (see"),
        (["generate", "a", "--json", "b"], "'b' is one argument too many"),
        (["evalaute", "run"], "there is no command 'evalaute'; did you mean evaluate?"),
        (["health", "--target", "http://localhost:9090"], "is a URL; give the server as HOST:PORT"),
        (["health", "--tls", "--insecure"], "--insecure excludes --tls, certificates and --server-name"),
        (["health", "--client-key", __file__], "--client-certificate and --client-key need each other"),
        (["health", "--root-certificates", "/dev/null"], "'/dev/null' is empty"),
        (["health", "--token-file", __file__], "does not hold one line of printable ASCII"),
        (
            ["--target", "localhost:1", "health"],
            "--target: options follow the command, as in attendant health --target",
        ),
        ([], "the following arguments are required: COMMAND"),
        (["generate", "-", "--stream"], "--stream: can't be used with standard input"),
        (["generate", "-", "--request-id", "x"], "--request-id: can't be used with standard input"),
        (["generate", "a", "--skip", "1"], "--skip: skips lines of standard input"),
        (["generate", "a", "--stream", "--json"], "--stream: excludes --json"),
        (["generate", "a", "--links", "--json"], "--links: are printed after texts"),
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
    ("variable", "value", "arguments", "words"),
    [
        ("TARGET", "http://localhost:9090", [], "'http://localhost:9090': is a URL; "),
        ("TOKEN_FILE", "/nowhere", [], "'/nowhere' can't be read: No such file or directory"),
        ("ROOT_CERTIFICATES", __file__, ["--insecure"], "ATTENDANT_ROOT_CERTIFICATES (see"),
        ("CLIENT_KEY", __file__, [], "ATTENDANT_CLIENT_KEY (see"),
        ("TOKEN", "se\ncret", [], "ATTENDANT_TOKEN holds characters"),
    ],
)
def test_a_wrong_variable_is_named_and_no_token_is_shown(
    variable: str,
    value: str,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"ATTENDANT_{variable}", value)
    with pytest.raises(SystemExit) as ended:
        main(["health", *arguments])
    message = capsys.readouterr().err
    assert (ended.value.code, words in message, f"ATTENDANT_{variable}" in message) == (2, True, True)
    assert "cret" not in message


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
