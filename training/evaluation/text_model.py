"""A model from text to text: a stepper between its two tokenizers, whatever it came from."""

from dataclasses import dataclass

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.stepper import Stepper


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """What an evaluation decodes with.

    Attributes:
        append_eos: the encoder reads EOS at the end of every source.
        max_length: target tokens after which an output is cut where nobody says otherwise.
    """

    stepper: Stepper
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    special_ids: SpecialIds
    append_eos: bool
    max_length: int
