"""Searches written the slow and obvious way, to hold the fast ones against: every prefix is run again from its first
symbol, nothing is selected, shared or resumed."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from attendant.runtime.decoding.options import DecodingOptions
from tests.fakes import SPECIAL_IDS, FakeStepper, absorb, log_softmax, logits_of

EOS = SPECIAL_IDS.eos


@dataclass(frozen=True)
class Found:
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    ended: bool
    score: float


def next_log_probs(
    stepper: FakeStepper, source: Sequence[int], prefix: Sequence[int], options: DecodingOptions
) -> list[float]:
    """[V] after a prefix, run from the start, with the bans of the options."""
    history = 1
    for symbol in [*source, SPECIAL_IDS.start, *prefix]:
        history = absorb(history, symbol)
    logits = logits_of(history, stepper.vocabulary_size, stepper.spread)
    if len(prefix) < options.min_length:
        logits[EOS] = -1e9
    if options.suppress_unk:
        logits[SPECIAL_IDS.unk] = -1e9
    return [float(x) for x in log_softmax(logits)]


def penalized(log_probs: Sequence[float], alpha: float) -> float:
    return sum(log_probs) / ((5 + len(log_probs)) / 6) ** alpha


def naive_beam(stepper: FakeStepper, source: Sequence[int], options: DecodingOptions) -> list[Found]:
    """Beam search by its definition: pool, order, split into ended and living, until enough have ended."""
    k = options.beam_size
    living: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())]
    ended: list[Found] = []
    needed = max(math.ceil(options.patience * k), options.num_hypotheses) if k > 1 else 1  # 1 is greedy
    while living and len(ended) < needed:
        distributions = [next_log_probs(stepper, source, prefix, options) for prefix, _ in living]
        if len(living[0][0]) == options.max_length:
            for (prefix, lps), log_probs in zip(living, distributions, strict=True):
                if max(range(len(log_probs)), key=lambda i: log_probs[i]) == EOS:
                    summands = (*lps, log_probs[EOS])
                    ended.append(Found(prefix, summands, True, penalized(summands, options.length_penalty)))
                else:
                    ended.append(Found(prefix, lps, False, penalized(lps, options.length_penalty)))
            break
        pool = [
            (sum(lps) + log_probs[symbol], row, symbol)
            for row, ((_, lps), log_probs) in enumerate(zip(living, distributions, strict=True))
            for symbol in range(stepper.vocabulary_size)
            if log_probs[symbol] > -1e8
        ]
        pool.sort(key=lambda entry: -entry[0])
        following = []
        for place, (_, row, symbol) in enumerate(pool):
            prefix, lps = living[row]
            summands = (*lps, distributions[row][symbol])
            if symbol != EOS and len(following) < k:
                following.append(((*prefix, symbol), summands))
            if symbol == EOS and place < k:
                ended.append(Found(prefix, summands, True, penalized(summands, options.length_penalty)))
        living = following
    ended.sort(key=lambda found: -found.score)
    return ended[: options.num_hypotheses]


def best_by_brute_force(stepper: FakeStepper, source: Sequence[int], options: DecodingOptions) -> Found:
    """The best of every target that ends within max_length, by its score."""
    symbols = [s for s in range(stepper.vocabulary_size) if s not in (SPECIAL_IDS.pad, SPECIAL_IDS.bos, EOS)]
    best = None
    for length in range(options.max_length + 1):
        for tokens in itertools.product(symbols, repeat=length):
            log_probs = tuple(
                next_log_probs(stepper, source, tokens[:place], options)[symbol]
                for place, symbol in enumerate([*tokens, EOS])
            )
            found = Found(tokens, log_probs, True, penalized(log_probs, options.length_penalty))
            if best is None or found.score > best.score:
                best = found
    assert best is not None
    return best
