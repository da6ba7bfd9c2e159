"""The options of `generate`, named as in the API, with their meanings and defaults.

`attendant generate` and its help are made from this. The server checks ranges, since it has the models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option.

    Attributes:
        meaning: one line, with the unit.
        default: the server's value if the option is left out; empty if it needs no mention.
        least, most: the range of a whole number in the API's field.
    """

    meaning: str
    default: str = ""
    least: int = 0
    most: int = 2**32 - 1


OF_BUNDLE = "the bundle's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Draw tokens at random instead of searching for the most probable ones."""

    temperature: Annotated[
        float | None, Option("divide the logits: below 1 favours probable tokens, above 1 improbable ones", "1")
    ] = None
    top_k: Annotated[
        int | None, Option("draw among the N most probable tokens only; 0: the 256 most probable ones", "0")
    ] = None
    top_p: Annotated[
        float | None,
        Option("draw among the most probable tokens that together have this probability (Holtzman et al. 2020)", "1"),
    ] = None
    seed: Annotated[
        int | None,
        Option("the same seed and request give the same answer", "random", most=2**64 - 1),
    ] = None


class DecodingFields(TypedDict, total=False):
    """The options of the search."""

    beam_size: Annotated[int, Option("live hypotheses; 1: greedy search", OF_BUNDLE, least=1)]
    num_hypotheses: Annotated[
        int,
        Option(
            "hypotheses to return, best first; at most the beam size, unless they are alternatives or drawn",
            OF_BUNDLE,
            least=1,
        ),
    ]
    alternatives: Annotated[
        bool, Option("return hypotheses that begin differently: the best one for each of the most probable next tokens")
    ]
    min_length: Annotated[int, Option("tokens that a hypothesis must have before it may end", "0")]
    max_length: Annotated[int, Option("tokens after which a hypothesis is cut", OF_BUNDLE, least=1)]
    min_length_ratio: Annotated[
        float, Option("like the minimum length, in target tokens per source token; the stricter one applies", "none")
    ]
    max_length_ratio: Annotated[
        float, Option("like the maximum length, in target tokens per source token; the stricter one applies", "none")
    ]
    length_penalty: Annotated[
        float,
        Option(
            "divide log P by ((K + tokens) / (K + 1)) ^ X, K being the offset: larger values favour longer; 0: off",
            OF_BUNDLE,
        ),
    ]
    length_penalty_offset: Annotated[
        float,
        Option("K of the length penalty; 5 as in GNMT (Wu et al. 2016); 0: a power of the length", OF_BUNDLE),
    ]
    coverage_penalty: Annotated[
        float, Option("lower the score if source tokens got little attention (Wu et al. 2016); 0: none", "0")
    ]
    repetition_penalty: Annotated[
        float,
        Option("divide the probability of tokens that the hypothesis already has (Keskar et al. 2019); 1: none", "1"),
    ]
    no_repeat_ngram_size: Annotated[int, Option("prevent sequences of N tokens from repeating; 0: off", "0")]
    patience: Annotated[
        float,
        Option(
            "end the search when X times the beam size hypotheses have ended (Kasai et al. 2022)",
            "the bundle's; if it has none, end when no live hypothesis can enter the best",
        ),
    ]
    suppress_unk: Annotated[bool, Option("never generate UNK")]
    target_prefix: Annotated[Sequence[str], Option("every hypothesis begins with these tokens")]
    target_prefix_text: Annotated[
        str,
        Option("every hypothesis begins with this text, which may end within a word; a space at its end ends the word"),
    ]
    protect_spans: Annotated[
        bool, Option("return placeholders, tags, addresses, paths and emoji of the text as written", OF_BUNDLE)
    ]
    split_sentences: Annotated[
        bool, Option("decode each line and sentence of the text separately, and join the answers", OF_BUNDLE)
    ]
    sampling: Annotated[Sampling, Option("draw tokens at random instead of searching for the most probable ones")]
    masked_source_positions: Annotated[
        Sequence[int], Option("positions of the source's tokens, from 0, that attention ignores")
    ]


class OutputFields(TypedDict, total=False):
    """The parts of the answer in addition to the text."""

    attention: Annotated[bool, Option("return the attention weights")]
    token_log_probs: Annotated[bool, Option("return the log-probability of every token")]
    replace_unknowns: Annotated[bool, Option("replace each UNK by the source token that it attends to most")]
    trace: Annotated[
        int, Option("return the course of the search, with the N most probable tokens after each live hypothesis", "0")
    ]


class RequestOptions(DecodingFields, OutputFields, total=False):
    """All options of a request."""

    model: Annotated[str, Option("the model's name", "the only one served")]
    version: Annotated[str, Option("the model's version: its label, or the version in answers", "the server's choice")]


class Deadline(TypedDict, total=False):
    """The keyword that every call takes."""

    # Seconds, including retries; for bulk work, seconds without an answer. If None, there is no deadline. If left out,
    # it is the client's own.
    timeout: float | None


class GenerateOptions(RequestOptions, Deadline, total=False):
    """Everything that `generate` and `generate_many` take by keyword."""


def check_names(options: Iterable[str], fields: type) -> None:
    """Raises TypeError, naming the choices, if an option is not in one of the classes above."""
    if unknown := set(options) - fields.__annotations__.keys():
        choices = ", ".join(sorted(fields.__annotations__))
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; choose from {choices}")


def options_of(fields: type) -> dict[str, tuple[Any, Option]]:
    """Returns the type and the description of each option of one of the classes above, by name."""
    hints = get_type_hints(fields, include_extras=True)
    return {name: (kind, option) for name, hint in hints.items() for kind, option in [get_args(hint)]}
