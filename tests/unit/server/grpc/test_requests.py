"""Tests of every request field with a fake model: the options that the server reads, and its violations."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.options import DecodingOptions, Sampling, scoring_options
from attendant.runtime.decoding.trace import max_trace_bytes
from attendant.server.catalogue import ServedModel
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.requests import _read_once, parse, read_generate, read_score, status_of
from attendant.server.metrics import Metrics
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import fake_bundle, fake_stepper, serve_fake

Decoding = messages.DecodingOptions


def model(*, max_rows: int = 8, attention: bool = True, **defaults: Any) -> ServedModel:
    bundle = fake_bundle(attention=attention, **defaults)
    return serve_fake(fake_stepper(), Metrics(CollectorRegistry()), bundle, max_rows=max_rows)


def options_of(decoding: Decoding | None = None, attention: bool = False, **how: Any) -> DecodingOptions:
    request = messages.GenerateRequest(
        text="abc", decoding=decoding, output=messages.OutputOptions(attention=attention)
    )
    return read_generate(request, model(**how)).content.options


def refused(read: Callable[[Any, ServedModel], Any], request: Any, served: ServedModel | None = None) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        read(request, served or model())
    return {violation.field: violation.description for violation in caught.value.violations}


def refused_decoding(decoding: Decoding, **how: Any) -> dict[str, str]:
    return refused(read_generate, messages.GenerateRequest(text="abc", decoding=decoding), model(**how))


def test_unset_options_take_the_bundles_defaults() -> None:
    assert options_of() == DecodingOptions(beam_size=2, length_penalty=0.6, max_length=20)
    assert options_of(max_length=7, num_hypotheses=2) == DecodingOptions(
        beam_size=2, num_hypotheses=2, length_penalty=0.6, max_length=7
    )


def test_the_same_options_are_checked_against_each_models_limits() -> None:
    request = messages.GenerateRequest(text="abc", decoding=Decoding(beam_size=4))
    wide, narrow = model(max_rows=8), model(max_rows=2)
    for _ in range(2):
        assert read_generate(request, wide).content.options.beam_size == 4
        assert list(refused(read_generate, request, narrow)) == ["decoding.beam_size"]


def test_set_options_are_kept_exactly() -> None:
    options: dict[str, Any] = {
        "beam_size": 5,
        "num_hypotheses": 4,
        "length_penalty": 1.1,
        "length_penalty_offset": 0.0,
        "coverage_penalty": 0.2,
        "min_length": 2,
        "max_length": 9,
        "patience": 2.2,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
        "suppress_unk": True,
    }
    decoding = Decoding(**options, target_prefix=messages.Tokens(tokens=["AA", "B"]))
    assert options_of(decoding, attention=True) == DecodingOptions(**options, target_prefix=(4, 5), attention=True)
    several = options_of(Decoding(alternatives=True, num_hypotheses=3, length_penalty=0.0))
    assert (several.alternatives, several.num_hypotheses, several.beam_size) == (True, 3, 2)
    assert several.length_penalty == 0.0, "zero is not unset"
    assert options_of(patience=2.0).patience == 2.0
    assert options_of(Decoding(patience=0), patience=2.0).patience is None


@pytest.mark.parametrize(
    ("decoding", "field", "reason"),
    [
        # tests/integration/test_http_api.py tests the OpenAPI document's ranges, which are the same for every model.
        ({"beam_size": 0}, "beam_size", "is 0, must be 1 to 6"),
        ({"beam_size": 7}, "beam_size", "1 to 6"),
        ({"num_hypotheses": 3}, "num_hypotheses", "1 to 2, and at most beam_size"),
        ({"num_hypotheses": 5, "beam_size": 6}, "num_hypotheses", "1 to 4"),
        ({"max_length": 0}, "max_length", "1 to 20"),
        ({"max_length": 21}, "max_length", "1 to 20"),
        ({"min_length": 6, "max_length": 5}, "min_length", "is 6, must be 0 to 5, and at most max_length"),
        ({"min_length_ratio": 2, "max_length": 5}, "min_length_ratio", "is 2, 6 tokens of this source, must be 0 to 5"),
        ({"length_penalty": math.nan}, "length_penalty", "is nan, must be 0 to 10"),
        ({"length_penalty": math.inf}, "length_penalty", "0 to 10"),
        ({"patience": math.nan}, "patience", "0 to 10"),
        ({"patience": math.inf}, "patience", "0 to 10"),
        ({"no_repeat_ngram_size": 21}, "no_repeat_ngram_size", "0 to 20"),
        ({"repetition_penalty": math.nan}, "repetition_penalty", "1 to 10"),
        ({"max_length_ratio": math.nan}, "max_length_ratio", "more than 0 and at most 100"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature", "more than 0"),
        ({"sampling": {"top_k": 257}}, "sampling.top_k", "0 to 256"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "more than 0"),
        ({"sampling": {}, "beam_size": 2}, "beam_size", "sampling searches no beam"),
        ({"sampling": {}, "alternatives": True}, "alternatives", "draws differ by themselves"),
        ({"alternatives": True, "beam_size": 4, "num_hypotheses": 2}, "num_hypotheses", "alternatives have beam_size"),
        ({"masked_source_positions": [1]}, "masked_source_positions", "this model does not support masks"),
        ({"target_prefix": {"tokens": ["AA", "zz"]}}, "target_prefix.tokens[1]", "is 'zz', must be in the vocabulary"),
        ({"target_prefix": {"tokens": ["AA"] * 4}, "max_length": 3}, "target_prefix.tokens", "0 to 3 tokens long"),
    ],
)
def test_options_out_of_range_and_combinations_are_refused(decoding: dict[str, Any], field: str, reason: str) -> None:
    ((name, description),) = refused_decoding(Decoding(**decoding)).items()
    assert name == f"decoding.{field}" and reason in description


def test_limits_follow_from_other_options() -> None:
    assert options_of(Decoding(beam_size=6, num_hypotheses=4)).num_hypotheses == 4
    assert options_of(Decoding(min_length=5, max_length=5)).min_length == 5
    assert "decoding.num_hypotheses" in refused_decoding(Decoding(beam_size=1), num_hypotheses=2), "never clipped"


def test_length_ratios_limit_the_length() -> None:
    """The source has 3 tokens. The stricter limit applies."""
    assert options_of(Decoding(max_length_ratio=1.1)).max_length == 4
    assert options_of(Decoding(max_length_ratio=1.1, max_length=3)).max_length == 3
    assert options_of(Decoding(max_length_ratio=50)).max_length == 20, "the model's own limit"
    assert options_of(Decoding(min_length_ratio=1, min_length=2)).min_length == 3
    assert options_of(max_length=None, max_length_ratio=1.5).max_length == 5 + 10, "the bundle's default"
    assert options_of(Decoding(max_length=7), max_length=None, max_length_ratio=1.5).max_length == 7


def test_a_wrong_source_has_no_length_that_limits_other_options() -> None:
    empty = messages.GenerateRequest(text="", decoding=Decoding(min_length=12))
    assert list(refused(read_generate, empty, model(max_length=None, max_length_ratio=0.1))) == ["text"]
    empty.decoding.max_length_ratio = 0.1
    assert list(refused(read_generate, empty)) == ["text"]


def test_sampling_options_are_read() -> None:
    sampling = messages.SamplingOptions(temperature=0.7, top_k=5, top_p=0.9, seed=2**64 - 1)
    options = options_of(Decoding(sampling=sampling, num_hypotheses=3))
    assert options.sampling == Sampling(seed=2**64 - 1, temperature=0.7, top_k=5, top_p=0.9)
    assert (options.beam_size, options.num_hypotheses, options.max_rows) == (1, 3, 3), "the bundle's beam is for beams"
    seeds = {options_of(Decoding(sampling=messages.SamplingOptions())).sampling for _ in range(3)}
    assert len(seeds) == 3, "without a seed every answer is another one"


def test_unknowns_are_replaced_by_attention() -> None:
    request = messages.GenerateRequest(text="abc", output=messages.OutputOptions(replace_unknowns=True))
    assert read_generate(request, model()).content.options.attention
    request.output.attention = True
    has_none = "is true, must be false: this model has no attention"
    assert refused(read_generate, request, model(attention=False)) == {
        "output.replace_unknowns": has_none,
        "output.attention": has_none,
    }
    penalized = messages.GenerateRequest(text="abc", decoding=Decoding(coverage_penalty=0.1))
    assert refused(read_generate, penalized, model(attention=False)) == {
        "decoding.coverage_penalty": "is 0.1, must be 0: this model has no attention"
    }


def test_every_decoding_option_is_read_or_refused() -> None:
    """A field that is added to the proto and forgotten in the reader would be ignored silently."""
    values = {
        "min_length": 1,
        "suppress_unk": True,
        "num_hypotheses": 2,
        "alternatives": True,
        "target_prefix_text": "A",
    }
    for field in Decoding.DESCRIPTOR.fields:
        if field.name in TEXT_OPTIONS:
            continue  # They change the text: tests/integration/test_spans.py.
        decoding = Decoding()
        if field.message_type is not None:
            getattr(decoding, field.name).SetInParent()
            if field.name == "target_prefix":
                decoding.target_prefix.tokens.append("AA")
        elif field.is_repeated:
            getattr(decoding, field.name).append(1)
        else:
            setattr(
                decoding,
                field.name,
                values.get(field.name, 3),
            )
        try:
            assert options_of(decoding) != options_of(), f"{field.name} changes nothing"
        except InvalidArgument as error:
            assert [violation.field for violation in error.violations] == [f"decoding.{field.name}"]


def test_unknown_fields_and_prefixes_are_not_cached() -> None:
    served = model()

    def num_remembered(*decodings: Decoding) -> int:
        before = _read_once.cache_info().currsize
        for decoding in decodings:
            with suppress(InvalidArgument):
                read_generate(messages.GenerateRequest(text="abc", decoding=decoding), served)
        return _read_once.cache_info().currsize - before

    unknown_field = bytes([0xFA, 0x7F, 0x80, 0x7F])  # number 2047, 16,256 bytes
    unknown = [Decoding.FromString(unknown_field + f"{number:016256}".encode()) for number in range(3)]
    prefixes = [Decoding(target_prefix=messages.Tokens(tokens=["HH"] * number)) for number in range(50, 53)]
    _read_once.cache_clear()
    texts = [Decoding(target_prefix_text=text) for text in ("H", "HH AA", "K")]
    assert num_remembered(*unknown, *prefixes, *texts) == 0
    assert num_remembered(Decoding(beam_size=3), Decoding(beam_size=3), Decoding(beam_size=99)) == 2


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ({"text": "a" * 12}, (4,) * 12),
        ({"text": "a!"}, (4, 1)),
        ({"tokens": {"tokens": ["b", "a"]}}, (5, 4)),
        ({"tokens": {"tokens": ["<unk>"]}}, (1,)),
    ],
)
def test_a_source_may_have_unknown_symbols_and_the_longest_length(source: dict[str, Any], ids: tuple[int, ...]) -> None:
    """The source's end is not counted."""
    content = read_generate(messages.GenerateRequest(**source), model()).content
    assert (content.source_ids, content.num_source_tokens) == ((*ids, 3), len(ids))


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        *(({"text": text}, "text", "is 0 tokens long, must be 1 to 12 tokens long") for text in ("", "   ", "\u3000")),
        ({"text": " \u200b\u2066 "}, "text", "is ' \\u200b\\u2066 ', of which normalization leaves nothing"),
        ({"text": "a" * 13}, "text", "is 13 tokens long, must be 1 to 12 tokens long"),
        ({"tokens": {}}, "tokens.tokens", "is 0 tokens long, must be 1 to 12 tokens long"),
        ({"tokens": {"tokens": ["a"] * 13}}, "tokens.tokens", "is 13 tokens long"),
        *(
            ({"tokens": {"tokens": ["a", token]}}, "tokens.tokens[1]", f"is {token!r}, must be in the vocabulary")
            for token in ("", "z", "ab", "</s>", "<pad>", "<s>")
        ),
        ({}, "source", "is unset, must be text or tokens"),
        *(({"text": "a", "request_id": name}, "request_id", "") for name in ("x" * 129, "a\nb", "\x1b[31m")),
    ],
)
def test_a_wrong_source_or_id_is_refused(fields: dict[str, Any], field: str, reason: str) -> None:
    ((name, description),) = refused(read_generate, messages.GenerateRequest(**fields)).items()
    assert name == field and reason in description


def test_many_unknown_tokens_are_counted() -> None:
    violations = refused(read_generate, messages.GenerateRequest(tokens={"tokens": ["a", *"zzzzzz"]}))
    assert list(violations) == [*(f"tokens.tokens[{i}]" for i in range(1, 5)), "tokens.tokens"]
    assert violations["tokens.tokens"] == "is a list with 6 unknown tokens, must be in the vocabulary throughout"


class Untouchable:
    """A tokenizer that must not be called for a text or for a long list of tokens."""

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


async def test_a_large_request_is_read_off_the_event_loop() -> None:
    def read(request: messages.GenerateRequest, served: ServedModel) -> Any:
        return threading.current_thread()

    small = messages.GenerateRequest(text="a" * 12)
    large = messages.GenerateRequest(
        text="a" * 12, decoding=Decoding(target_prefix=messages.Tokens(tokens=["A"] * 999))
    )
    assert await parse(read, small, model()) is threading.current_thread()
    assert await parse(read, large, model()) is not threading.current_thread()


def test_the_worst_request_has_a_status_that_fits_in_headers() -> None:
    """HTTP/2 peers accept 8 KiB of headers by default, with the message percent-encoded and the details in base64."""
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
        read_generate(request, model(attention=False))
    assert len(caught.value.violations) == 25, "all are reported together"
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


def test_a_score_is_read_as_forced_decoding() -> None:
    parsed = read_score(score(), model()).content
    assert (parsed.source_ids, parsed.options) == ((4, 5, 6, 3), scoring_options((4, 5), 3))
    without = read_score(score(include_eos=False), model()).content.options
    assert without == scoring_options((4, 5), 3, include_eos=False)
    empty = read_score(score(target_text=""), model()).content.options
    assert empty.target_prefix == (3,), "the end alone has a probability"


@pytest.mark.parametrize(
    ("fields", "violated"),
    [
        ({"source_text": None, "target_text": None}, ["source", "target"]),
        ({"target_text": "", "include_eos": False}, ["target_text"]),
        ({"target_text": "B " * 21}, ["target_text"]),
        ({"target_text": None, "target_tokens": {"tokens": ["AA", "zz"]}}, ["target_tokens.tokens[1]"]),
        ({"source_text": None, "source_tokens": {}}, ["source_tokens.tokens"]),
        ({"output": {"replace_unknowns": True}}, ["output.replace_unknowns"]),
        ({"output": {"trace": 3}}, ["output.trace"]),
    ],
)
def test_all_violations_of_a_score_are_reported(fields: dict[str, Any], violated: list[str]) -> None:
    assert list(refused(read_score, score(**fields))) == violated
