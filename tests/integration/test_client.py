"""The real client against the real server, and a client that knows nothing but reflection."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attendant
from attendant_client import AttendantClient, GenerateOptions, HealthStatus, InvalidArgument, NotFound
from attendant_client.command.rendering import concerns_every_line

COMMAND = [sys.executable, "-c", "import sys; from attendant_client.command import main; sys.exit(main())"]
WORDS = ["badge", "face", "a", "jig", "abcdefghij", "hid", "deaf"]


async def test_what_is_served(client: AttendantClient) -> None:
    assert await client.health() is HealthStatus.SERVING
    (model,) = await client.models()
    assert model == await client.model() == await client.model(model.name)
    assert (model.name, model.precision, model.provider) == ("tiny", "fp32", "cpu")
    assert model.limits.max_beam_size == 8
    assert model.defaults["beam_size"] == 1
    assert model.defaults["length_penalty"] == pytest.approx(0.6)
    assert json.loads(model.manifest_json)["name"] == "tiny"


async def test_an_answer_holds_together(client: AttendantClient) -> None:
    answer = await client.generate(
        "badge", beam_size=4, num_hypotheses=3, attention=True, token_log_probs=True, request_id="r1"
    )
    assert (answer.request_id, answer.model) == ("r1", "tiny")
    assert answer.source_tokens == ("b", "a", "d", "g", "e", "</s>")
    assert len(answer.hypotheses) == 3
    scores = [hypothesis.score for hypothesis in answer.hypotheses]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in answer.hypotheses:
        assert hypothesis.text == " ".join(hypothesis.tokens)
        assert sum(hypothesis.token_log_probs) == pytest.approx(hypothesis.log_prob, rel=1e-5)
        assert hypothesis.attention is not None
        assert len(hypothesis.attention) == len(hypothesis.token_log_probs)
        for row in hypothesis.attention:
            assert len(row) == 6
            assert sum(row) == pytest.approx(1, abs=1e-5)
    assert 0 < answer.timings.total_seconds < 30


async def test_a_score_is_the_decoders_own(client: AttendantClient) -> None:
    answer = await client.generate("badge", beam_size=4, num_hypotheses=3, token_log_probs=True)
    for hypothesis in answer.hypotheses:
        score = await client.score("badge", hypothesis.tokens)
        assert score.target_tokens == hypothesis.tokens
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, rel=1e-5)


async def test_the_library_answers_as_the_server_does(client: AttendantClient, tiny_bundle_path: Path) -> None:
    options = GenerateOptions(beam_size=4, num_hypotheses=3, attention=True, token_log_probs=True, length_penalty=0.3)
    here = attendant.load(tiny_bundle_path, threads=1).generate(WORDS, **options)
    for word, ours in zip(WORDS, here, strict=True):
        theirs = await client.generate(word, **options)
        assert ours.source_tokens == theirs.source_tokens
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert (one.text, one.tokens, one.finish_reason) == (other.text, other.tokens, other.finish_reason)
            assert one.score == pytest.approx(other.score, rel=1e-6)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-6)
            assert one.attention == pytest.approx(np.array(other.attention), rel=1e-6)


async def test_many_are_what_each_is_alone(client: AttendantClient) -> None:
    alone = {word: (await client.generate(word, beam_size=3)).hypotheses for word in WORDS}
    sources = WORDS * 20
    together = [answer async for answer in client.generate_many(sources, beam_size=3, concurrency=16)]
    assert [answer.hypotheses for answer in together] == [alone[word] for word in sources]
    assert max(answer.timings.mean_batch_rows for answer in together) > 3


async def test_tokens_and_text_are_the_same_question(client: AttendantClient) -> None:
    by_text, by_tokens = await client.generate("face"), await client.generate(("f", "a", "c", "e"))
    assert by_text.hypotheses == by_tokens.hypotheses


async def test_mistakes_name_the_field_and_whom_they_concern(client: AttendantClient) -> None:
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


def test_the_command_in_bulk(target: str, environment: dict[str, str]) -> None:
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


def test_reflection_alone_is_enough(target: str, environment: dict[str, str]) -> None:
    """Another process, without our generated code, asks by what the server says of itself."""
    program = """
import sys
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

sys.modules["attendant_client"] = None
with grpc.insecure_channel(sys.argv[1]) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert services >= {"attendant.v1.Seq2Seq", "grpc.health.v1.Health"}, services
    service = DescriptorPool(database).FindServiceByName("attendant.v1.Seq2Seq")
    method = service.methods_by_name["Generate"]
    question, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=question.SerializeToString,
        response_deserializer=answer.FromString,
    )
    found = call(question(text="face", decoding={"beam_size": 2}), timeout=10)
    print(found.hypotheses[0].text)
"""
    done = subprocess.run([sys.executable, "-c", program, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = subprocess.run(
        [*COMMAND, "generate", "face", "--beam-size", "2", "--target", target],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == asked.stdout
