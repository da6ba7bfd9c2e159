"""The decoding options of one request, as plain values.

A prefix that is given as text, such as "Cliquez sur Ouv", forces the tokens of its whole words. For "▁Ouv" a hypothesis
may take any token that continues it, "▁Ouvrez" as well as "▁Ou" and then "vrir": the model chooses. In state p of a
completion, p characters of that word have been written. There is a state for each of its characters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from attendant.runtime.bundle.manifest import GNMT_OFFSET, MAX_BEAM, MAX_TOKENS, Manifest
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.stepper import Ids


class Choice(NamedTuple):
    """The tokens that may come next in one state.

    Attributes:
        partial: tokens that stay within the word, each with the next state.
        complete: tokens that reach the end of the word or go beyond it, as the bytes of an int32 array: there may be
            thousands, and options are pickled.
    """

    partial: tuple[tuple[int, int], ...] = ()
    complete: bytes = b""

    @property
    def ids(self) -> Ids:
        """Every token that may come next."""
        partial = [token_id for token_id, _ in self.partial]
        return np.concatenate([np.array(partial, np.int64), np.frombuffer(self.complete, np.int32)])


Completion = tuple[Choice, ...]


def choice_after(completion: Completion, token_ids: Sequence[int]) -> Choice | None:
    """Returns the choice after the tokens that follow the forced ones; None if the word is complete."""
    state = 0
    for token_id in token_ids:
        following = dict(completion[state].partial).get(token_id)
        if following is None:
            return None
        state = following
    return completion[state] if state < len(completion) else None


def completion_of(word: str, tokenizer: Tokenizer) -> Completion:
    """Returns every way to write a word, or a longer one, in a vocabulary's symbols; empty if there is none."""
    choices: list[Choice] = []
    is_open = [False] * len(word)
    for place in reversed(range(len(word))):
        mark = tokenizer.continuation if place else ""
        within = []
        if not tokenizer.joins_by_blanks:
            ends = [end for end in range(place + 1, len(word)) if is_open[end]]
            tokens = ((tokenizer.id_of(mark + word[place:end]), end) for end in ends)
            within = [(token_id, end) for token_id, end in tokens if token_id is not None]
        complete = tokenizer.ids_beginning_with(mark + word[place:])
        is_open[place] = bool(within or complete)
        choices.append(Choice(tuple(within), np.array(complete, np.int32).tobytes()))
    return tuple(reversed(choices)) if word and is_open[0] else ()


MAX_SAMPLED_CANDIDATES: Final = 256
"""Sampling draws among at most this number of the most probable symbols, since only they are copied to the host."""

MAX_PENALTY: Final = 10
MAX_LENGTH_RATIO: Final = 100


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that an option may have.

    Attributes:
        is_open: `least` itself is not allowed.
    """

    least: int
    most: int
    is_open: bool = False

    def __contains__(self, number: float) -> bool:
        # These comparisons refuse NaN, too.
        return self.least <= number <= self.most and not (self.is_open and number == self.least)

    def __str__(self) -> str:
        return f"more than {self.least} and at most {self.most}" if self.is_open else f"{self.least} to {self.most}"


RANGES: Final[Mapping[str, Range]] = {
    "beam_size": Range(1, MAX_BEAM),
    "num_hypotheses": Range(1, MAX_BEAM),
    "length_penalty": Range(0, MAX_PENALTY),
    "length_penalty_offset": Range(0, MAX_PENALTY),
    "coverage_penalty": Range(0, MAX_PENALTY),
    "repetition_penalty": Range(1, MAX_PENALTY),
    "min_length": Range(0, MAX_TOKENS),
    "max_length": Range(1, MAX_TOKENS),
    "min_length_ratio": Range(0, MAX_LENGTH_RATIO, is_open=True),
    "max_length_ratio": Range(0, MAX_LENGTH_RATIO, is_open=True),
    "patience": Range(0, 10),
    "no_repeat_ngram_size": Range(0, MAX_TOKENS),
    "temperature": Range(0, 10, is_open=True),
    "top_k": Range(0, MAX_SAMPLED_CANDIDATES),
    "top_p": Range(0, 1, is_open=True),
    "seed": Range(0, 2**64 - 1),
    "trace": Range(0, 32),
}
"""The widest range of each option for any model. `Limits` has those of a model."""

LENGTH_MARGIN: Final = 10  # Tokens that the default maximum length adds to the ratio of the training split.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Drawing tokens at random instead of searching for the most probable ones.

    Attributes:
        seed: the same seed and request give the same targets in every batch. None until it is drawn.
        temperature: divides the log-probabilities; 1 samples from the model's own distribution.
        top_k: draw among the k most probable symbols; if 0, among MAX_SAMPLED_CANDIDATES.
        top_p: draw among the most probable symbols that together reach this probability (Holtzman et al. 2020).
    """

    seed: int | None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Options of one request. Callers validate: here they are assumed to be in range.

    Attributes:
        max_length: tokens after which a hypothesis is cut; BOS, EOS and padding don't count, a prefix does.
        beam_size: live hypotheses; 1 is greedy search.
        num_hypotheses: hypotheses returned; at most beam_size, unless they are drawn or alternatives.
        length_penalty: alpha of `penalty`. 0 disables.
        length_penalty_offset: k of `penalty`.
        coverage_penalty: GNMT's beta (Wu et al. 2016, eq. 14). 0 disables. Only for models with attention.
        min_length: EOS is banned before this number of tokens; at most max_length.
        patience: if None, the search ends when no live hypothesis can enter the num_hypotheses best any more (Huang et
            al. 2017); else when patience * beam_size hypotheses have ended (Kasai et al. 2022), but not before
            num_hypotheses have. Greedy search ends at its first EOS either way.
        no_repeat_ngram_size: prevents n-grams of this size from repeating. 0 disables.
        repetition_penalty: divides the probability of symbols that the hypothesis already has, for ranking. 1 disables.
        suppress_unk: UNK is never generated.
        target_prefix: ids that every hypothesis begins with; at most max_length. Bans do not apply to them.
        completion: completes the last word of the prefix; empty if the prefix ends with its last token.
        scores_prefix: only the log-probabilities of the prefix are computed. It may end with EOS.
        alternatives: the num_hypotheses most probable symbols after the prefix each begin a search of their own, and
            the best hypothesis of each is returned.
        sampling: draw num_hypotheses targets; the beam size is 1.
        attention: keep the attention weights of the hypotheses.
        trace: record the search, with this number of candidates of each live hypothesis. 0 disables.
        masked_source_positions: places in the source that attention must not look at, in rising order; not all.
    """

    max_length: int
    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 0.0
    length_penalty_offset: float = GNMT_OFFSET
    coverage_penalty: float = 0.0
    min_length: int = 0
    patience: float | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    suppress_unk: bool = False
    target_prefix: tuple[int, ...] = ()
    completion: Completion = ()
    scores_prefix: bool = False
    alternatives: bool = False
    sampling: Sampling | None = None
    attention: bool = False
    trace: int = 0
    masked_source_positions: tuple[int, ...] = ()
    num_beams: int = field(init=False, default=1)
    """Searches after the prefix: one, unless the hypotheses are drawn or alternatives."""
    max_rows: int = field(init=False, default=1)
    """Upper bound of the request's live hypotheses."""

    def __post_init__(self) -> None:
        if self.alternatives or self.sampling is not None:
            object.__setattr__(self, "num_beams", self.num_hypotheses)
        object.__setattr__(self, "max_rows", self.num_beams * self.beam_size)

    @property
    def needs_attention(self) -> bool:
        """Each step's attention weights must be kept."""
        return self.attention or self.coverage_penalty != 0 or self.trace > 0

    def penalty(self, length: int) -> float:
        """Returns the divisor of a log-probability of `length` summands: ((k + length) / (k + 1)) ^ alpha.

        With k = 5 that is GNMT's (Wu et al. 2016, eq. 14). With k = 0 and alpha = 1 it is the length itself, and the
        score is the mean log-probability (Cho et al. 2014, "On the Properties of Neural Machine Translation").
        """
        offset, alpha = self.length_penalty_offset, self.length_penalty
        # There is no summand if nothing may be generated.
        return float(((offset + length) / (offset + 1.0)) ** alpha) if alpha and length else 1.0

    @property
    def changes_candidates(self) -> bool:
        """The next symbol is not only decided by the model's own order."""
        return bool(
            self.target_prefix
            or self.completion
            or self.alternatives
            or self.sampling is not None
            or self.repetition_penalty != 1.0
        )


def scoring_options(
    target_ids: Sequence[int], eos: int, *, include_eos: bool = True, attention: bool = False
) -> DecodingOptions:
    """Returns the options that score a target: a search in which every symbol is forced (teacher forcing)."""
    prefix = (*target_ids, eos) if include_eos else tuple(target_ids)
    if not prefix:
        raise ValueError("an empty target without EOS has no probability")
    return DecodingOptions(max_length=len(prefix), target_prefix=prefix, scores_prefix=True, attention=attention)


def default_max_length(manifest: Manifest, num_source_tokens: int) -> int:
    """Returns the default maximum length, never above the bundle's limit.

    It is the bundle's fixed default; without one, the ratio of the training split decides; without that, or for a
    source that is wrong, which has 0 tokens, the limit.
    """
    defaults, limit = manifest.decoding, manifest.limits.max_target_tokens
    if defaults.max_length is not None:
        return defaults.max_length
    if defaults.max_length_ratio is not None and num_source_tokens:
        return min(limit, length_by_ratio(defaults.max_length_ratio, num_source_tokens) + LENGTH_MARGIN)
    return limit


def length_by_ratio(ratio: float, num_source_tokens: int) -> int:
    """Returns the target tokens for a ratio per source token; at least one."""
    # Ratios are written in decimals: 1.1 times 10 is 11 tokens, not 11.000000000000002 rounded up.
    return max(1, math.ceil(ratio * num_source_tokens - 1e-9))
