"""Every other field of a request: what is taken, and what is refused with which words."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.options import scoring_options
from attendant.runtime.requests import max_trace_bytes
from attendant.server.catalogue.models import ServedModel
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.conversion import status_of
from attendant.server.grpc.requests import parse, read_generate, read_score
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.unit.server.grpc.reading import Decoding, model, refused


@pytest.mark.parametrize("text", ["", "   ", "\t\n", "\u3000"])
def test_a_text_without_tokens(text: str) -> None:
    assert refused(read_generate, messages.GenerateRequest(text=text)) == {
        "text": "is 0 tokens long, must be 1 to 12 tokens long"
    }


def test_the_longest_text() -> None:
    assert read_generate(messages.GenerateRequest(text="a" * 12), model()).content.num_source_tokens == 12, (
        "EOS is not counted"
    )
    assert refused(read_generate, messages.GenerateRequest(text="a" * 13)) == {
        "text": "is 13 tokens long, must be 1 to 12 tokens long"
    }


class Untouchable:
    """A tokenizer that must not be asked for the tokens of a text, nor for those of a long list."""

    takes_texts = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.max_characters = tokenizer.max_characters
        self.takes_texts = True

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        assert not tokens
        return []


def test_a_text_that_can_not_fit_is_not_tokenized() -> None:
    served = model()
    untouchable: Any = Untouchable
    bundle = replace(
        served.bundle,
        source_tokenizer=untouchable(served.bundle.source_tokenizer),
        target_tokenizer=untouchable(served.bundle.target_tokenizer),
    )
    served = replace(served, bundle=bundle)
    too_long = "is 250000 characters long, must be 1 to 12 tokens long, which 96 characters are enough for"
    assert refused(read_generate, messages.GenerateRequest(text="a" * 250_000), served) == {"text": too_long}
    assert refused(read_score, messages.ScoreRequest(source_text="a" * 250_000, target_text="B" * 241), served) == {
        "source_text": too_long,
        "target_text": "is 241 characters long, must be 0 to 20 tokens long, which 240 characters are enough for",
    }
    many = messages.Tokens(tokens=["zz"] * 80_000)
    both = messages.ScoreRequest(source_tokens=many, target_tokens=many)
    assert set(refused(read_score, both, served)) == {"source_tokens.tokens", "target_tokens.tokens"}
    prefix = messages.GenerateRequest(tokens=many, decoding=Decoding(target_prefix=many))
    assert set(refused(read_generate, prefix, served)) == {"tokens.tokens", "decoding.target_prefix.tokens"}


async def test_a_large_request_is_read_beside_the_event_loop() -> None:
    def read(request: messages.GenerateRequest, served: ServedModel) -> Any:
        return threading.current_thread()

    small = messages.GenerateRequest(text="a" * 12)
    large = messages.GenerateRequest(
        text="a" * 12, decoding=Decoding(target_prefix=messages.Tokens(tokens=["A"] * 999))
    )
    assert await parse(read, small, model()) is threading.current_thread()
    assert await parse(read, large, model()) is not threading.current_thread()


def test_a_text_never_fails_on_what_is_unknown() -> None:
    assert read_generate(messages.GenerateRequest(text="a!"), model()).content.source_ids == (4, 1, 3)


def tokens(*given: str) -> messages.GenerateRequest:
    return messages.GenerateRequest(tokens=messages.Tokens(tokens=given))


def test_tokens() -> None:
    assert read_generate(tokens("b", "a"), model()).content.source_ids == (5, 4, 3)
    assert read_generate(tokens("<unk>"), model()).content.source_ids == (1, 3)
    limit = "must be 1 to 12 tokens long"
    assert refused(read_generate, tokens()) == {"tokens.tokens": f"is 0 tokens long, {limit}"}
    assert refused(read_generate, tokens(*"a" * 13)) == {"tokens.tokens": f"is 13 tokens long, {limit}"}


@pytest.mark.parametrize("token", ["", "z", "ab", "</s>", "<pad>", "<s>"])
def test_unknown_tokens_are_told_one_by_one(token: str) -> None:
    assert refused(read_generate, tokens("a", token)) == {
        "tokens.tokens[1]": f"is {token!r}, must be in the vocabulary"
    }


def test_many_unknown_tokens_are_counted() -> None:
    found = refused(read_generate, tokens("a", *"zzzzzz"))
    assert list(found) == [*(f"tokens.tokens[{i}]" for i in range(1, 5)), "tokens.tokens"]
    assert found["tokens.tokens"] == "is a list with 6 unknown tokens, must be in the vocabulary throughout"


def test_no_source() -> None:
    assert refused(read_generate, messages.GenerateRequest()) == {"source": "is unset, must be text or tokens"}


def test_attention_of_a_model_without() -> None:
    request = messages.GenerateRequest(text="a", output=messages.OutputOptions(attention=True))
    assert refused(read_generate, request, model(attention=False)) == {
        "output.attention": "is true, must be false: this model has no attention"
    }


@pytest.mark.parametrize("request_id", ["x" * 129, "a\nb", "\x1b[31m"])
def test_a_request_id_that_would_spoil_the_log(request_id: str) -> None:
    assert list(refused(read_generate, messages.GenerateRequest(text="a", request_id=request_id))) == ["request_id"]


def test_all_violations_are_told_together() -> None:
    request = messages.GenerateRequest(
        request_id="\n",
        decoding=Decoding(
            beam_size=0,
            num_hypotheses=9,
            length_penalty=math.nan,
            coverage_penalty=1,
            min_length=50,
            max_length=0,
            patience=-1,
            no_repeat_ngram_size=99,
            repetition_penalty=0.5,
            target_prefix=messages.Tokens(tokens=["zz"]),
            sampling=messages.SamplingOptions(temperature=0),
        ),
        output=messages.OutputOptions(replace_unknowns=True, attention=True),
    )
    found = refused(read_generate, request, model(attention=False))
    assert len(found) == 15


def test_the_worst_request_has_a_status_that_fits_in_headers() -> None:
    """HTTP/2 peers take 8 KiB of headers by default; the message counts percent-encoded, the details as base64."""
    request = messages.GenerateRequest(
        request_id="\u0416" * 5000,
        tokens=messages.Tokens(tokens=["\U0001f600" * 100] * 12),
        decoding=Decoding(
            beam_size=0,
            num_hypotheses=2**32 - 1,
            length_penalty=-1e30,
            coverage_penalty=1e30,
            min_length=2**32 - 1,
            max_length=2**32 - 1,
            patience=-1e30,
            no_repeat_ngram_size=2**32 - 1,
            repetition_penalty=1e30,
            target_prefix=messages.Tokens(tokens=["\U0001f600" * 100] * 12),
            target_prefix_text="\U0001f600" * 100,
            sampling=messages.SamplingOptions(temperature=-1e30, top_k=2**32 - 1, top_p=1e30),
            min_length_ratio=1e30,
            max_length_ratio=-1e30,
            alternatives=True,
        ),
        output=messages.OutputOptions(replace_unknowns=True),
    )
    with pytest.raises(InvalidArgument) as caught:
        read_generate(request, model())
    status = status_of(caught.value, request.request_id[:128])
    percent_encoded = sum(1 if byte < 128 else 3 for byte in status.message.encode())
    assert percent_encoded + 4 * status.ByteSize() / 3 < 8000


def test_a_trace_that_may_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    request = messages.GenerateRequest(
        text="abc", decoding=Decoding(beam_size=4, max_length=20), output=messages.OutputOptions(trace=5)
    )
    parsed = read_generate(request, model())
    # 4 hypotheses in 21 steps, each with 4 weights and up to 6 candidates.
    estimate = 4 * 21 * (64 + 4 * 4 + 6 * 32)
    assert max_trace_bytes(parsed.content.options, 4) == estimate
    request.output.trace = 0
    assert parsed.max_answer_bytes - read_generate(request, model()).max_answer_bytes == 8 * estimate
    request.output.trace = 5
    monkeypatch.setattr("attendant.runtime.requests.MAX_TRACE_BYTES", estimate - 1)
    (description,) = refused(read_generate, request).values()
    assert description.startswith("is 5 candidates of 4 hypotheses in 20 steps, which may take 0.0 MiB, must be")
    assert "lower trace, max_length or beam_size" in description


def score(**fields: Any) -> messages.ScoreRequest:
    return messages.ScoreRequest(**{"source_text": "abc", "target_text": "AA B", **fields})


def test_a_score() -> None:
    parsed = read_score(score(), model()).content
    assert (parsed.source_ids, parsed.options) == ((4, 5, 6, 3), scoring_options((4, 5), 3))
    without = read_score(score(include_eos=False), model()).content.options
    assert without == scoring_options((4, 5), 3, include_eos=False)
    empty = read_score(score(target_text=""), model()).content.options
    assert empty.target_prefix == (3,), "the end alone has a probability"


def test_what_a_score_refuses() -> None:
    assert refused(read_score, messages.ScoreRequest()) == {
        "source": "is unset, must be source_text or source_tokens",
        "target": "is unset, must be target_text or target_tokens",
    }
    assert refused(read_score, score(target_text="", include_eos=False)) == {
        "target_text": "is 0 tokens long, must be 1 to 20 tokens long"
    }
    assert list(refused(read_score, score(target_tokens=messages.Tokens(tokens=["AA", "zz"])))) == [
        "target_tokens.tokens[1]"
    ]
    assert list(refused(read_score, score(target_text="B " * 21))) == ["target_text"]
    assert list(refused(read_score, score(source_tokens=messages.Tokens()))) == ["source_tokens.tokens"]
    assert list(refused(read_score, score(output=messages.OutputOptions(replace_unknowns=True)))) == [
        "output.replace_unknowns"
    ]
