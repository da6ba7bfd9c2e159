"""golden.jsonl: sources with the tokens and scores they must give, on whatever host serves the bundle.

Examples are chosen at export so that every decision of the search has a clear margin: another host's last bits don't
change the tokens. Scores may differ by the certificate's `score_tolerance`.
"""

import json
from typing import ClassVar, Final

from pydantic import Field, ValidationError

from attendant.runtime.bundle.manifest import GNMT_OFFSET, Precision, Section
from attendant.runtime.bundle.reading import Unfit, parse_json

MAX_EXAMPLES: Final = 1000
"""An export chooses 24 per precision."""


class GoldenExample(Section):
    """One source, how it is decoded, and what must come out as the best hypothesis.

    Attributes:
        precision: of the graphs that must give it.
        source_tokens: as a request gives them: without the EOS that the bundle may append.
        length_penalty, length_penalty_offset: as in DecodingDefaults.
        score, log_prob: of the best hypothesis, as the exporting host computed them.
    """

    NEWER: ClassVar = frozenset({"length_penalty_offset"})

    precision: Precision
    source_tokens: tuple[str, ...]
    beam_size: int
    length_penalty: float = Field(ge=0, le=10)
    length_penalty_offset: float = Field(GNMT_OFFSET, ge=0, le=10)
    max_length: int
    target_tokens: tuple[str, ...]
    score: float
    log_prob: float


def parse_golden(text: str) -> tuple[GoldenExample, ...]:
    """Reads the lines of golden.jsonl.

    Raises:
        ValueError: naming the line that is no golden example.
    """
    examples = []
    for number, line in enumerate(text.splitlines(), 1):
        if number > MAX_EXAMPLES:
            raise ValueError(f"golden.jsonl: more than {MAX_EXAMPLES} examples")
        try:
            examples.append(GoldenExample.model_validate(parse_json(line)))
        except Unfit as error:
            raise ValueError(f"golden.jsonl: line {number}: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{name}: " for name in first["loc"])
            raise ValueError(f"golden.jsonl: line {number}: {where}{first['msg']}") from error
    return tuple(examples)


def golden_text(examples: tuple[GoldenExample, ...]) -> str:
    """golden.jsonl: one JSON object per line, keys sorted."""
    return "".join(
        json.dumps(example.model_dump(mode="json"), sort_keys=True, ensure_ascii=False) + "\n" for example in examples
    )
