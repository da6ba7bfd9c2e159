"""Measuring a model with the decoder that serves. A result says how it was taken, or it is no result."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from runtime.decoding.offline import decode_all
from runtime.decoding.options import DecodingOptions
from runtime.manifest import SpecialIds
from runtime.stepper import Stepper
from runtime.tokenizer import Tokenizer
from training.data.corpus import encode_source
from training.data.pairs import Example
from training.metrics import MetricName, score
from training.table import Table


class EvaluationConfig(Table):
    """`[evaluation]`: what is measured on the test part once the training is over.

    Attributes:
        metrics: which.
        beam_size: live hypotheses; 1: greedy.
        length_penalty: GNMT's alpha (Wu et al. 2016, eq. 14).
    """

    metrics: Annotated[tuple[MetricName, ...], Field(min_length=1)] = ("exact_match",)
    beam_size: Annotated[int, Field(ge=1)] = 1
    length_penalty: Annotated[float, Field(ge=0.0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number with its protocol.

    Attributes:
        protocol: data, rule and decoding, in words.
        decoding: the options of the search.
    """

    metric: str
    value: float
    protocol: str
    num_examples: int
    decoding: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decode_texts(
    stepper: Stepper,
    examples: Sequence[Example],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    options: DecodingOptions,
    *,
    special_ids: SpecialIds,
    append_eos: bool,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """The best output of each example, as text. A source that the tokenizer leaves nothing of gives an empty one."""
    sources = encode_source(source_tokenizer, [example.source for example in examples], append_eos=append_eos)
    decodable = [index for index, source in enumerate(sources) if source]
    found = decode_all(stepper, [sources[index] for index in decodable], options, special_ids, progress=progress)
    texts = [""] * len(examples)
    for index, hypotheses in zip(decodable, found, strict=True):
        texts[index] = target_tokenizer.decode(hypotheses[0].token_ids)
    return texts


def evaluate(
    stepper: Stepper,
    examples: Sequence[Example],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: EvaluationConfig,
    *,
    special_ids: SpecialIds,
    append_eos: bool,
    max_length: int,
    data_name: str,
    progress: Callable[[int], None] | None = None,
) -> list[Measurement]:
    """Decodes all examples once and takes every metric of `config`.

    Args:
        examples: not empty.
        max_length: target tokens after which an output is cut.
        data_name: what the protocol calls the data, e.g. "data/cmudict/test.tsv".
        progress: called with the number of examples that have just finished.
    """
    options = DecodingOptions(max_length=max_length, beam_size=config.beam_size, length_penalty=config.length_penalty)
    outputs = decode_texts(
        stepper,
        examples,
        source_tokenizer,
        target_tokenizer,
        options,
        special_ids=special_ids,
        append_eos=append_eos,
        progress=progress,
    )
    references = [example.references for example in examples]
    decoding = {"beam_size": config.beam_size, "length_penalty": config.length_penalty, "max_length": max_length}
    search = "greedy" if config.beam_size == 1 else f"beam {config.beam_size}, length penalty {config.length_penalty:g}"
    measurements = []
    for metric in config.metrics:
        result = score(metric, outputs, references)
        protocol = f"{data_name}; {result.rule}; {search}, at most {max_length} tokens"
        measurements.append(
            Measurement(
                metric=metric,
                value=round(result.value, 4),
                protocol=protocol,
                num_examples=len(examples),
                decoding=decoding,
            )
        )
    return measurements
