"""Every field of a request: what is taken, and what is refused with which words."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.forced import ForcedSearch
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.errors import InvalidArgument
from attendant.server.models import ServedModel
from attendant.server.observability.metrics import Metrics
from attendant.server.servicers.requests import read_generate, read_score
from attendant.server.servicers.status import status_of
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
    search = read_generate(request, model(**how)).search
    assert isinstance(search, BeamSearch)
    return search.options


def refused(read: Callable[[Any, ServedModel], Any], request: Any, served: ServedModel | None = None) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        read(request, served or model())
    return {one.field: one.description for one in caught.value.violations}


def refused_decoding(decoding: Decoding, **how: Any) -> dict[str, str]:
    return refused(read_generate, messages.GenerateRequest(text="abc", decoding=decoding), model(**how))


def test_unset_options_take_the_bundles_defaults() -> None:
    assert options_of() == DecodingOptions(beam_size=2, length_penalty=0.6, max_length=20)
    assert options_of(max_length=7, num_hypotheses=2) == DecodingOptions(
        beam_size=2, num_hypotheses=2, length_penalty=0.6, max_length=7
    )


def test_set_options_are_taken_as_they_were_typed() -> None:
    given = Decoding(
        beam_size=5,
        num_hypotheses=4,
        length_penalty=1.1,
        min_length=2,
        max_length=9,
        patience=2.2,
        suppress_unk=True,
    )
    assert options_of(given, attention=True) == DecodingOptions(
        beam_size=5,
        num_hypotheses=4,
        length_penalty=1.1,
        min_length=2,
        max_length=9,
        patience=2.2,
        suppress_unk=True,
        attention=True,
    )


def test_zero_is_a_value_and_not_unset() -> None:
    assert options_of(Decoding(length_penalty=0.0)).length_penalty == 0.0


RANGES = "is {}, must be {}"


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("beam_size", 0, "1 to 6"),
        ("beam_size", 7, "1 to 6"),
        ("beam_size", 2**32 - 1, "1 to 6"),
        ("num_hypotheses", 0, "1 to 2, and at most beam_size"),
        ("num_hypotheses", 3, "1 to 2, and at most beam_size"),
        ("max_length", 0, "1 to 20"),
        ("max_length", 21, "1 to 20"),
        ("min_length", 21, "0 to 20, and at most max_length"),
        ("length_penalty", -0.5, "0 to 10"),
        ("length_penalty", 10.5, "0 to 10"),
        ("length_penalty", math.nan, "0 to 10"),
        ("length_penalty", math.inf, "0 to 10"),
        ("patience", 0.0, "more than 0 and at most 10"),
        ("patience", -1.0, "more than 0 and at most 10"),
        ("patience", math.nan, "more than 0 and at most 10"),
        ("patience", math.inf, "more than 0 and at most 10"),
        ("coverage_penalty", 0.25, "0 or unset: not available in this version"),
        ("coverage_penalty", math.nan, "0 or unset: not available in this version"),
        ("no_repeat_ngram_size", 3, "0 or unset: not available in this version"),
        ("repetition_penalty", 1.5, "1 or unset: not available in this version"),
        ("repetition_penalty", 0.0, "1 or unset: not available in this version"),
    ],
)
def test_a_number_out_of_range(field: str, value: float, limit: str) -> None:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    assert refused_decoding(Decoding(**{field: value})) == {f"decoding.{field}": RANGES.format(shown, limit)}


def test_limits_that_follow_from_other_options() -> None:
    assert options_of(Decoding(beam_size=6, num_hypotheses=4)).num_hypotheses == 4
    assert "decoding.num_hypotheses" in refused_decoding(Decoding(beam_size=6, num_hypotheses=5))
    assert options_of(Decoding(min_length=5, max_length=5)).min_length == 5
    assert refused_decoding(Decoding(min_length=6, max_length=5)) == {
        "decoding.min_length": "is 6, must be 0 to 5, and at most max_length"
    }
    assert "decoding.num_hypotheses" in refused_decoding(Decoding(beam_size=1), num_hypotheses=2), "never clipped"


def test_no_beam_is_wider_than_the_engine() -> None:
    assert refused_decoding(Decoding(beam_size=4), max_rows=3) == {"decoding.beam_size": "is 4, must be 1 to 3"}


@pytest.mark.parametrize(
    "neutral",
    [
        Decoding(coverage_penalty=0, no_repeat_ngram_size=0, repetition_penalty=1),
        Decoding(target_prefix=messages.Tokens()),
    ],
)
def test_an_option_that_is_not_built_may_be_neutral(neutral: Decoding) -> None:
    assert options_of(neutral) == options_of()


def test_options_that_are_not_built() -> None:
    unavailable = "not available in this version"
    assert refused_decoding(Decoding(sampling=messages.SamplingOptions())) == {
        "decoding.sampling": f"is set, must be unset: {unavailable}"
    }
    assert refused_decoding(Decoding(target_prefix=messages.Tokens(tokens=["AA"]))) == {
        "decoding.target_prefix": f"is 1 token long, must be empty or unset: {unavailable}"
    }
    request = messages.GenerateRequest(text="abc", output=messages.OutputOptions(replace_unknowns=True))
    assert refused(read_generate, request) == {"output.replace_unknowns": f"is true, must be false: {unavailable}"}


def test_every_decoding_option_is_read_or_refused() -> None:
    """A field that is added to the proto and forgotten here would be ignored without a word."""
    for field in Decoding.DESCRIPTOR.fields:
        given = Decoding()
        if field.message_type is not None:
            getattr(given, field.name).SetInParent()
            if field.name == "target_prefix":
                given.target_prefix.tokens.append("AA")
        else:
            setattr(given, field.name, {"min_length": 1, "suppress_unk": True, "num_hypotheses": 2}.get(field.name, 3))
        try:
            assert options_of(given) != options_of(), f"{field.name} changes nothing"
        except InvalidArgument as error:
            assert [one.field for one in error.violations] == [f"decoding.{field.name}"]


@pytest.mark.parametrize("text", ["", "   ", "\t\n", "\u3000"])
def test_a_text_without_tokens(text: str) -> None:
    assert refused(read_generate, messages.GenerateRequest(text=text)) == {
        "text": "is 0 tokens long, must be 1 to 12 tokens long"
    }


def test_the_longest_text() -> None:
    assert len(read_generate(messages.GenerateRequest(text="a" * 12), model()).source_ids) == 12, "EOS is not counted"
    assert refused(read_generate, messages.GenerateRequest(text="a" * 13)) == {
        "text": "is 13 tokens long, must be 1 to 12 tokens long"
    }


def test_a_text_never_fails_on_what_is_unknown() -> None:
    assert read_generate(messages.GenerateRequest(text="a!"), model()).source_ids == (4, 1)


def tokens(*given: str) -> messages.GenerateRequest:
    return messages.GenerateRequest(tokens=messages.Tokens(tokens=given))


def test_tokens() -> None:
    assert read_generate(tokens("b", "a"), model()).source_ids == (5, 4)
    assert read_generate(tokens("<unk>"), model()).source_ids == (1,)
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
            no_repeat_ngram_size=2,
            repetition_penalty=2,
            target_prefix=messages.Tokens(tokens=["AA"]),
            sampling=messages.SamplingOptions(),
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
            target_prefix=messages.Tokens(tokens=["AA"]),
            sampling=messages.SamplingOptions(),
        ),
        output=messages.OutputOptions(replace_unknowns=True),
    )
    with pytest.raises(InvalidArgument) as caught:
        read_generate(request, model())
    status = status_of(caught.value)
    percent_encoded = sum(1 if byte < 128 else 3 for byte in status.message.encode())
    assert percent_encoded + 4 * status.ByteSize() / 3 < 8000


def score(**fields: Any) -> messages.ScoreRequest:
    return messages.ScoreRequest(**{"source_text": "abc", "target_text": "AA B", **fields})


def test_a_score() -> None:
    work = read_score(score(), model())
    assert isinstance(work.search, ForcedSearch)
    assert (work.source_ids, work.search.symbols, work.max_rows) == ((4, 5, 6), (4, 5, 3), 1)
    without = read_score(score(include_eos=False), model()).search
    assert isinstance(without, ForcedSearch) and without.symbols == (4, 5)
    empty = read_score(score(target_text=""), model()).search
    assert isinstance(empty, ForcedSearch) and empty.symbols == (3,), "the end alone has a probability"


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
