"""DecodingOptions, the message, to the plain value; most requests have the same few."""

from functools import lru_cache
from typing import Final
from weakref import ref

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.requests import Violation, Violations, drawn, read_decoding
from attendant.server.catalogue.models import ServedModel
from attendant_client.messages import set_fields
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_OPTIONS_KEPT: Final = 1024
MAX_BYTES_KEPT: Final = 128
"""All options together take no more, but for prefixes, and for fields that this version does not know."""


def read_options(
    given: messages.DecodingOptions, model: ServedModel, num_source_tokens: int, attention: bool, violations: Violations
) -> DecodingOptions | None:
    """The options, with the bundle's defaults for what is unset; what is wrong goes to `violations`."""
    by_length = given.HasField("min_length_ratio") or given.HasField("max_length_ratio")
    by_length |= model.manifest.decoding.max_length_ratio is not None and not given.HasField("max_length")
    length = num_source_tokens if by_length else 0
    # What completes a text may be thousands of tokens.
    if given.ByteSize() <= MAX_BYTES_KEPT and not given.HasField("target_prefix_text"):
        options, found = _read_once(ref(model), given.SerializeToString(), attention, length)
    else:
        options, found = read_decoding(set_fields(given), model, length, attention=attention)
    violations.found += found
    # In this order: reading `sampling` where there is none makes an object.
    is_seeded = given.HasField("sampling") and given.sampling.HasField("seed")
    return options if options is None or is_seeded else drawn(options)


@lru_cache(maxsize=MAX_OPTIONS_KEPT)
def _read_once(
    model: "ref[ServedModel]", asked: bytes, attention: bool, num_source_tokens: int
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """What is remembered does not hold the model, which ends once nobody does."""
    held = model()
    assert held is not None, "the caller holds it"
    given = set_fields(messages.DecodingOptions.FromString(asked))
    return read_decoding(given, held, num_source_tokens, attention=attention)
