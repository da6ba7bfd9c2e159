"""Every decoding option: what is taken, and what is refused with which words."""

import math
from contextlib import suppress
from typing import Any

import pytest

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.decoding.options import DecodingOptions, Sampling
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.requests import _read_once, read_generate
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.unit.server.grpc.reading import Decoding, model, options_of, refused, refused_decoding


def test_unset_options_take_the_bundles_defaults() -> None:
    assert options_of() == DecodingOptions(beam_size=2, length_penalty=0.6, max_length=20)
    assert options_of(max_length=7, num_hypotheses=2) == DecodingOptions(
        beam_size=2, num_hypotheses=2, length_penalty=0.6, max_length=7
    )


def test_the_same_options_are_held_against_each_models_own_limits() -> None:
    request = messages.GenerateRequest(text="abc", decoding=Decoding(beam_size=4))
    wide, narrow = model(max_rows=8), model(max_rows=2)
    for _ in range(2):
        assert read_generate(request, wide).content.options.beam_size == 4
        assert list(refused(read_generate, request, narrow)) == ["decoding.beam_size"]


def test_set_options_are_taken_as_they_were_typed() -> None:
    given: dict[str, Any] = {
        "beam_size": 5,
        "num_hypotheses": 4,
        "length_penalty": 1.1,
        "length_penalty_offset": 0.0,
        "min_length": 2,
        "max_length": 9,
        "patience": 2.2,
        "suppress_unk": True,
    }
    assert options_of(Decoding(**given), attention=True) == DecodingOptions(**given, attention=True)


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
        ("length_penalty_offset", -0.5, "0 to 10"),
        ("length_penalty_offset", math.nan, "0 to 10"),
        ("patience", 0.0, "more than 0 and at most 10"),
        ("patience", -1.0, "more than 0 and at most 10"),
        ("patience", math.nan, "more than 0 and at most 10"),
        ("patience", math.inf, "more than 0 and at most 10"),
        ("coverage_penalty", -1.0, "0 to 10"),
        ("coverage_penalty", math.nan, "0 to 10"),
        ("no_repeat_ngram_size", 21, "0 to 20"),
        ("repetition_penalty", 0.5, "1 to 10"),
        ("repetition_penalty", math.inf, "1 to 10"),
        ("min_length_ratio", 0.0, "more than 0 and at most 100"),
        ("max_length_ratio", math.nan, "more than 0 and at most 100"),
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


def test_every_option_that_is_set_is_taken() -> None:
    given = Decoding(
        beam_size=2,
        coverage_penalty=0.2,
        no_repeat_ngram_size=3,
        repetition_penalty=1.2,
        target_prefix=messages.Tokens(tokens=["AA", "B"]),
        alternatives=True,
        num_hypotheses=3,
    )
    assert options_of(given) == DecodingOptions(
        beam_size=2,
        length_penalty=0.6,
        coverage_penalty=0.2,
        no_repeat_ngram_size=3,
        repetition_penalty=1.2,
        target_prefix=(4, 5),
        alternatives=True,
        num_hypotheses=3,
        max_length=20,
    )


def test_lengths_by_ratio() -> None:
    """The source has 3 tokens. The stricter of both counts."""
    assert options_of(Decoding(max_length_ratio=1.1)).max_length == 4
    assert options_of(Decoding(max_length_ratio=1.1, max_length=3)).max_length == 3
    assert options_of(Decoding(max_length_ratio=50)).max_length == 20, "the model's own limit"
    assert options_of(Decoding(min_length_ratio=1, min_length=2)).min_length == 3
    assert refused_decoding(Decoding(min_length_ratio=2, max_length=5)) == {
        "decoding.min_length_ratio": "is 2, 6 tokens of this source, must be 0 to 5 tokens, and at most max_length"
    }
    assert options_of(max_length=None, max_length_ratio=1.5).max_length == 5 + 10, "the bundle's default"
    assert options_of(Decoding(max_length=7), max_length=None, max_length_ratio=1.5).max_length == 7


def test_sampling() -> None:
    given = messages.SamplingOptions(temperature=0.7, top_k=5, top_p=0.9, seed=2**64 - 1)
    options = options_of(Decoding(sampling=given, num_hypotheses=3))
    assert options.sampling == Sampling(seed=2**64 - 1, temperature=0.7, top_k=5, top_p=0.9)
    assert (options.beam_size, options.num_hypotheses, options.max_rows) == (1, 3, 3), "the bundle's beam is for beams"
    seeds = {options_of(Decoding(sampling=messages.SamplingOptions())).sampling for _ in range(3)}
    assert len(seeds) == 3, "without a seed every answer is another one"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            Decoding(sampling=messages.SamplingOptions(temperature=0, top_k=257, top_p=0)),
            {
                "decoding.sampling.temperature": "is 0, must be more than 0 and at most 10",
                "decoding.sampling.top_k": "is 257, must be 0 to 256",
                "decoding.sampling.top_p": "is 0, must be more than 0 and at most 1",
            },
        ),
        (
            Decoding(sampling=messages.SamplingOptions(), beam_size=2),
            {"decoding.beam_size": "is 2, must be 1 or unset: sampling searches no beam"},
        ),
        (
            Decoding(sampling=messages.SamplingOptions(), alternatives=True),
            {"decoding.alternatives": "is true, must be false or unset: draws differ by themselves"},
        ),
        (
            Decoding(alternatives=True, beam_size=4, num_hypotheses=2),
            {
                "decoding.num_hypotheses": "is 2, must be 1 to 1, and 6 live hypotheses at most: alternatives have "
                "beam_size each"
            },
        ),
        (
            Decoding(target_prefix=messages.Tokens(tokens=["AA", "zz"])),
            {
                "decoding.target_prefix.tokens[1]": "is 'zz', must be in the vocabulary; a text belongs into "
                "target_prefix_text"
            },
        ),
        (
            Decoding(target_prefix=messages.Tokens(tokens=["AA"] * 4), max_length=3),
            {"decoding.target_prefix.tokens": "is 4 tokens long, must be 0 to 3 tokens long"},
        ),
    ],
)
def test_options_that_do_not_go_together(given: Decoding, found: dict[str, str]) -> None:
    assert refused_decoding(given) == found


def test_unknowns_are_replaced_by_attention() -> None:
    request = messages.GenerateRequest(text="abc", output=messages.OutputOptions(replace_unknowns=True))
    assert read_generate(request, model()).content.options.attention
    assert refused(read_generate, request, model(attention=False)) == {
        "output.replace_unknowns": "is true, must be false: this model has no attention"
    }
    penalized = messages.GenerateRequest(text="abc", decoding=Decoding(coverage_penalty=0.1))
    assert refused(read_generate, penalized, model(attention=False)) == {
        "decoding.coverage_penalty": "is 0.1, must be 0: this model has no attention"
    }


def test_every_decoding_option_is_read_or_refused() -> None:
    """A field that is added to the proto and forgotten here would be ignored without a word."""
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
        given = Decoding()
        if field.message_type is not None:
            getattr(given, field.name).SetInParent()
            if field.name == "target_prefix":
                given.target_prefix.tokens.append("AA")
        elif field.is_repeated:
            getattr(given, field.name).append(1)
        else:
            setattr(
                given,
                field.name,
                values.get(field.name, 3),
            )
        try:
            assert options_of(given) != options_of(), f"{field.name} changes nothing"
        except InvalidArgument as error:
            assert [one.field for one in error.violations] == [f"decoding.{field.name}"]


def test_what_a_client_makes_up_is_not_remembered() -> None:
    served = model()

    def num_remembered(*asked: Decoding) -> int:
        before = _read_once.cache_info().currsize
        for decoding in asked:
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
