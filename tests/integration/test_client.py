"""Tests of the real client against the real server: errors, and the command with many lines."""

import json
import subprocess
import sys

import pytest

from attendant_client import AttendantClient, InvalidArgument, NotFound
from attendant_client.command.rendering import concerns_every_line

COMMAND = [sys.executable, "-c", "import sys; from attendant_client.command import main; sys.exit(main())"]
WORDS = ["badge", "face", "a", "jig", "abcdefghij", "hid", "deaf"]


async def test_errors_name_the_field_and_concern_a_line_or_all(client: AttendantClient) -> None:
    with pytest.raises(InvalidArgument) as source:
        await client.generate("")
    assert [violation.field for violation in source.value.violations] == ["text"]
    assert not concerns_every_line(source.value)
    with pytest.raises(InvalidArgument) as token:
        await client.generate(("a", "zz"))
    assert [violation.field for violation in token.value.violations] == ["tokens.tokens[1]"]
    assert not concerns_every_line(token.value)
    with pytest.raises(InvalidArgument) as options:
        await client.generate("a", beam_size=9, max_length=1000)
    assert {v.field for v in options.value.violations} == {"decoding.beam_size", "decoding.max_length"}
    assert concerns_every_line(options.value)
    with pytest.raises(InvalidArgument) as length:
        await client.generate("a" * 40, min_length_ratio=1.5)
    assert [violation.field for violation in length.value.violations] == ["decoding.min_length_ratio"]
    assert not concerns_every_line(length.value), "a shorter source may be right"
    with pytest.raises(NotFound, match="tiny") as model:
        await client.generate("a", model="none")
    assert concerns_every_line(model.value)


def test_the_command_answers_lines_in_bulk(target: str, environment: dict[str, str]) -> None:
    lines = [*WORDS, "", "a" * 65, *WORDS]
    done = subprocess.run(
        [*COMMAND, "generate", "-", "--target", target, "--json", "--beam-size", "2"],
        input="\n".join(lines),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "the answer was cut" not in line]
    assert errors[0].startswith("attendant: line 9: text ")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["source"] for answer in answers] == lines
    assert [len(answer["hypotheses"]) for answer in answers] == [1] * 7 + [0, 0] + [1] * 7
    assert [a["hypotheses"] for a in answers[:7]] == [a["hypotheses"] for a in answers[9:]]
