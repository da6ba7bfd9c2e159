"""What the server is asked: the lines of a file, or sources that the bundle itself tells of."""

import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Distribution
from attendant.runtime.errors import UserError
from attendant_client.v1 import seq2seq_pb2 as messages

NUM_SOURCES = 512
"""Different sources, asked in turns."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Serialized requests, and what they are, in words."""

    payloads: list[bytes]
    about: str


def sources_of(bundle: Bundle, data: Path | None, beam_size: int | None) -> Sources:
    """Requests for a bundle, in an order that is the same each time.

    Args:
        data: texts, one a line, up to a tab where a line has one; None: what the bundle tells of its sources.
        beam_size: None: the bundle's.

    Raises:
        UserError: the file can't be read, or has no text that the model takes; the bundle has no golden examples.
    """
    generator = random.Random(1)
    decoding = messages.DecodingOptions(beam_size=beam_size) if beam_size else None
    if data is None:
        sources, about = _golden(bundle, generator)
        tokens = (messages.Tokens(tokens=source) for source in sources)
        requests = [messages.GenerateRequest(tokens=one, decoding=decoding) for one in tokens]
    else:
        texts, about = _texts(bundle, data, generator)
        requests = [messages.GenerateRequest(text=text, decoding=decoding) for text in texts]
    return Sources([one.SerializeToString() for one in requests], about)


def _texts(bundle: Bundle, data: Path, generator: random.Random) -> tuple[list[str], str]:
    try:
        lines = data.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"--data {data}: can't be read: {reason}") from None
    texts = [line.split("\t")[0] for line in lines]
    chosen = generator.sample(texts, min(NUM_SOURCES, len(texts)))
    longest = bundle.manifest.limits.max_source_tokens
    fit = [text for text in chosen if 1 <= len(bundle.source_tokenizer.encode(text)) <= longest]
    if not fit:
        raise UserError(f"--data {data}: none of its lines is a text of 1 to {longest} tokens, as the model takes")
    without = f"; {len(chosen) - len(fit)} others are empty or too long" if len(fit) < len(chosen) else ""
    return fit, f"{len(fit)} of the {len(texts)} lines of {data}{without}"


def _golden(bundle: Bundle, generator: random.Random) -> tuple[list[list[str]], str]:
    """Golden examples' tokens; in the lengths of real sources where the bundle has recorded them."""
    golden = [list(one.source_tokens) for one in bundle.golden]
    if not golden:
        raise UserError("the bundle has no golden examples to ask for: name a file of texts with --data")
    if (reference := bundle.manifest.reference) is None:
        return golden, f"{len(golden)} golden examples of the bundle; --data FILE sends your own texts"
    longest, found = bundle.manifest.limits.max_source_tokens, []
    for length in _lengths(reference.signals["source_tokens"], generator):
        tokens: list[str] = []
        while len(tokens) < min(length, longest):
            tokens += generator.choice(golden)
        found.append(tokens[: min(length, longest)])
    about = f"tokens of golden examples, in the lengths of {reference.data}; --data FILE sends your own texts"
    return found, about


def _lengths(recorded: Distribution, generator: random.Random) -> list[int]:
    """Lengths that are distributed like this; those above all edges are a tenth longer than the last one."""
    edges = [round(edge) for edge in recorded.edges]
    upper = [*edges, round(1.1 * edges[-1]) + 1]
    lower = [1, *(edge + 1 for edge in edges)]
    places = generator.choices(range(len(upper)), cum_weights=list(accumulate(recorded.shares)), k=NUM_SOURCES)
    return [generator.randint(min(lower[place], upper[place]), upper[place]) for place in places]
