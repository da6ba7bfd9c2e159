"""The options of `generate`, named as in the API. What is left out takes the bundle's default."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Draw tokens at random instead of searching for the most probable ones.

    Attributes:
        temperature: divides the logits; 1 samples from the model's own distribution.
        top_k: only the k most probable symbols; 0: all that the server considers.
        top_p: only the most probable symbols that together have this probability (Holtzman et al. 2020).
        seed: the same seed and request give the same answer.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


class DecodingFields(TypedDict, total=False):
    """How the answer is searched for."""

    # Live hypotheses; 1 is greedy search.
    beam_size: int
    # Hypotheses returned, best first; at most beam_size.
    num_hypotheses: int
    # score = log_prob / ((5 + |Y|) / 6) ^ length_penalty (Wu et al. 2016, eq. 14).
    length_penalty: float
    # Wu et al. 2016, eq. 14.
    coverage_penalty: float
    # In tokens, without EOS.
    min_length: int
    max_length: int
    # Search ends when patience * beam_size hypotheses have ended (Kasai et al. 2022).
    patience: float
    no_repeat_ngram_size: int
    # Keskar et al. 2019.
    repetition_penalty: float
    # Never generate UNK.
    suppress_unk: bool
    # Every hypothesis begins with these tokens.
    target_prefix: Sequence[str]
    sampling: Sampling


class OutputFields(TypedDict, total=False):
    """What the answer holds besides the text."""

    attention: bool
    token_log_probs: bool
    # Replace each UNK by the source token that it attends to most.
    replace_unknowns: bool


class RequestOptions(DecodingFields, OutputFields, total=False):
    """Everything that a request says beside its source."""

    # The manifest's name; may be left out where the server serves one model.
    model: str


class GenerateOptions(RequestOptions, total=False):
    """Everything that `generate` and `generate_many` take by keyword."""

    # Seconds for a request, retries included; of `generate_many`: that may pass without an answer. None: no limit. Left
    # out: the client's own.
    timeout: float | None
