"""Slow, straightforward searches that the fast ones are compared with.

Every prefix is run again from its first symbol. Nothing is selected, shared or resumed. Every option follows its
definition.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES, DecodingOptions
from attendant.runtime.decoding.trace import Fate, SearchEnd
from tests.fakes import SPECIAL_IDS, FakeStepper, absorb, log_softmax, logits_of

TextOf = Callable[[tuple[int, ...]], Hashable]
"""Function from tokens to a text. Hypotheses with equal texts are duplicates."""

EOS = SPECIAL_IDS.eos
BANNED = -1e8


@dataclass(frozen=True)
class Ended:
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    ended: bool
    score: float


@dataclass(frozen=True)
class Partial:
    """A live hypothesis: its tokens, their log-probabilities and the total that ranks it."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0


def history_of(source: Sequence[int], prefix: Sequence[int]) -> int:
    history = 1
    for symbol in [*source, SPECIAL_IDS.start, *prefix]:
        history = absorb(history, symbol)
    return history


def next_log_probs(
    stepper: FakeStepper, source: Sequence[int], prefix: Sequence[int], options: DecodingOptions
) -> list[float]:
    """Returns the log-probabilities [V] after a prefix, with the bans of the options."""
    logits = logits_of(history_of(source, prefix), stepper.vocabulary_size, stepper.spread)
    logits[list(banned(prefix, options, stepper.vocabulary_size))] = -1e9
    if logits.max() < BANNED:  # every symbol is banned
        return [-math.inf] * len(logits)
    return [float(x) for x in log_softmax(logits)]


def banned(tokens: Sequence[int], options: DecodingOptions, vocabulary_size: int) -> set[int]:
    """Returns the symbols that may not follow: none while a prefix is forced."""
    if len(tokens) < len(options.target_prefix) or completes(tokens, options) is not None:
        return set()
    symbols = {s for s in range(vocabulary_size) if repeats_an_ngram([*tokens, s], options.no_repeat_ngram_size)}
    symbols |= {EOS} if len(tokens) < options.min_length else set()
    return symbols | ({SPECIAL_IDS.unk} if options.suppress_unk else set())


def completes(tokens: Sequence[int], options: DecodingOptions) -> set[int] | None:
    """Returns the symbols that may continue the prefix's last word, or None if it is complete or not yet begun."""
    state, num_forced = 0, len(options.target_prefix)
    if not options.completion or len(tokens) < num_forced:
        return None
    for token in tokens[num_forced:]:
        following = [to for symbol, to in options.completion[state].partial if symbol == token]
        if not following:
            return None
        (state,) = following
    return set(options.completion[state].ids.tolist())


def repeats_an_ngram(tokens: Sequence[int], size: int) -> bool:
    """Returns True if the last n-gram also occurs earlier."""
    if not size or len(tokens) < size:
        return False
    ngrams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return ngrams[-1] in ngrams[:-1]


def ranking(log_probs: Sequence[float], tokens: Sequence[int], options: DecodingOptions) -> list[float]:
    """Returns the log-probabilities [V] as the search ranks them."""
    if (allowed := completes(tokens, options)) is not None:
        return [value if symbol in allowed else -math.inf for symbol, value in enumerate(log_probs)]
    return [
        value - math.log(options.repetition_penalty) if symbol in tokens else value
        for symbol, value in enumerate(log_probs)
    ]


def penalized(total: float, num_summands: int, options: DecodingOptions) -> float:
    offset = options.length_penalty_offset
    if not num_summands:
        return total
    return total / ((offset + num_summands) / (offset + 1)) ** options.length_penalty


def coverage(stepper: FakeStepper, source: Sequence[int], tokens: Sequence[int], num_summands: int) -> float:
    """Returns the sum over positions of log min(attention, 1). The fake attends to one position per step."""
    had = [0.0] * len(source)
    for length in range(num_summands):
        had[history_of(source, tokens[:length]) % len(source)] += 1.0
    return sum(math.log(min(max(share, 1e-10), 1.0)) for share in had)


def score(
    stepper: FakeStepper, source: Sequence[int], partial: Partial, num_summands: int, options: DecodingOptions
) -> float:
    value = penalized(partial.total, num_summands, options)
    if options.coverage_penalty:
        value += options.coverage_penalty * coverage(stepper, source, partial.tokens, num_summands)
    return value


def naive_decode(
    stepper: FakeStepper, source: Sequence[int], options: DecodingOptions, text_of: TextOf = tuple
) -> list[Ended]:
    """Returns all hypotheses of the answer, best first."""
    return answer_of(naive_searches(stepper, source, options, text_of), options, text_of)


def answer_of(searches: "Sequence[Searched]", options: DecodingOptions, text_of: TextOf = tuple) -> list[Ended]:
    hypotheses = sorted((hypothesis for search in searches for hypothesis in search.hypotheses), key=by_score)
    return hypotheses if options.sampling is not None else distinct(hypotheses, text_of)


def distinct(ended: Sequence[Ended], text_of: TextOf) -> list[Ended]:
    """Keeps the best hypothesis of each text, and of equal scores the first. The order stays."""
    return [
        hypothesis
        for place, hypothesis in enumerate(ended)
        if all(
            other.score < hypothesis.score or (other.score == hypothesis.score and later > place)
            for later, other in enumerate(ended)
            if later != place and text_of(other.tokens) == text_of(hypothesis.tokens)
        )
    ]


def naive_progress(stepper: FakeStepper, source: Sequence[int], options: DecodingOptions) -> list[tuple[int, ...]]:
    """Returns, after each step except the last, the prefix that all possible best targets share."""
    searches = naive_searches(stepper, source, options)
    certain = []
    for step in range(1, max(len(search.trace) for search in searches)):
        states = [search.trace[step] if step < len(search.trace) else ([], search.hypotheses) for search in searches]
        living = [partial for lives, _ in states for partial in lives]
        ended = [hypothesis for _, ends in states for hypothesis in ends]
        best = max((hypothesis.score for hypothesis in ended), default=-math.inf)
        rivals = [hypothesis.tokens for hypothesis in ended if hypothesis.score == best]
        most = options.max_length + 1
        rivals += [partial.tokens for partial in living if penalized(partial.total, most, options) >= best]
        shared = next(n for n in range(len(rivals[0]), -1, -1) if all(rival[:n] == rivals[0][:n] for rival in rivals))
        certain.append(max(rivals[0][:shared], options.target_prefix, key=len))
    return certain


Considered = tuple[int, float, float, Fate]
"""A candidate symbol, its log-probability, the hypothesis's total with it, and its fate."""


@dataclass(frozen=True)
class Live:
    """A hypothesis that a step continues, with its parent's row in the previous step and its candidates."""

    parent: int
    token: int
    log_prob: float
    total: float
    score: float
    attends_to: int
    banned: tuple[int, ...]
    candidates: list[Considered]


@dataclass(frozen=True)
class Step:
    live: list[Live]
    bound: float | None
    best_possible: float | None


@dataclass(frozen=True)
class Searched:
    """The result of one search, with the living and the ended hypotheses before each of its steps.

    Attributes:
        steps: the steps as a trace records them.
        ends: the step, the row and the hypothesis of each end, in order.
    """

    hypotheses: list[Ended]
    trace: "list[tuple[list[Partial], list[Ended]]]"
    steps: list[Step] = field(default_factory=list)
    ends: list[tuple[int, int, Ended]] = field(default_factory=list)

    def reason(self, options: DecodingOptions) -> SearchEnd:
        """Returns the reason for the end of the search, from its last step."""
        last = len(self.steps) - 1
        if any(fate is Fate.SEARCH_ENDED for live in self.steps[-1].live for *_, fate in live.candidates):
            return SearchEnd.BOUND if options.patience is None else SearchEnd.PATIENCE
        if all(hypothesis.ended for step, _, hypothesis in self.ends if step == last):
            return SearchEnd.EOS
        return SearchEnd.LENGTH if last == options.max_length else SearchEnd.BANS


def restriction(tokens: Sequence[int], symbol: int, options: DecodingOptions) -> Fate:
    """Returns the reason why a candidate was not taken: the prefix, the draw, another alternative, or its rank."""
    if len(tokens) < len(options.target_prefix) or symbol not in (completes(tokens, options) or {symbol}):
        return Fate.PREFIX
    if options.sampling is not None:
        return Fate.NOT_DRAWN
    return Fate.ALTERNATIVE if options.alternatives and len(tokens) == len(options.target_prefix) else Fate.RANK


def considered(
    partial: Partial, log_probs: Sequence[float], options: DecodingOptions, fates: dict[int, Fate]
) -> list[Considered]:
    """Returns the candidates that a trace shows after a hypothesis: the first by rank, and all that were taken."""
    is_free = len(partial.tokens) >= len(options.target_prefix) and completes(partial.tokens, options) is None
    values = ranking(log_probs, partial.tokens, options) if is_free else log_probs
    order = sorted((s for s in range(len(values)) if values[s] > BANNED), key=lambda s: -values[s])
    shown = order[: options.trace] + [symbol for symbol in order[options.trace :] if symbol in fates]
    is_longest = len(partial.tokens) == options.max_length
    return [
        (
            symbol,
            log_probs[symbol],
            partial.total + values[symbol],
            fates.get(symbol, Fate.LENGTH if is_longest else restriction(partial.tokens, symbol, options)),
        )
        for symbol in shown
    ]


def naive_searches(
    stepper: FakeStepper, source: Sequence[int], options: DecodingOptions, text_of: TextOf = tuple
) -> list[Searched]:
    if options.num_beams == 1 and options.sampling is None and not options.alternatives:
        return [naive_beam(stepper, source, options, text_of=text_of)]
    if options.sampling is not None:
        return [naive_draw(stepper, source, options, number) for number in range(options.num_hypotheses)]
    log_probs = next_log_probs(stepper, source, options.target_prefix, options)
    order = sorted(range(stepper.vocabulary_size), key=lambda s: -ranked(log_probs, options)[s])
    possible = [symbol for symbol in order if ranked(log_probs, options)[symbol] > BANNED]
    single = replace(options, num_hypotheses=1)
    return [
        naive_beam(stepper, source, single, first=symbol) for symbol in possible[: options.num_hypotheses] or [None]
    ]


def by_score(hypothesis: Ended) -> float:
    return -hypothesis.score


def ranked(log_probs: Sequence[float], options: DecodingOptions) -> list[float]:
    return ranking(log_probs, options.target_prefix, options)


def step_of(
    stepper: FakeStepper,
    source: Sequence[int],
    living: Sequence[tuple[int, Partial]],
    distributions: Sequence[Sequence[float]],
    fates: Sequence[dict[int, Fate]],
    ended: Sequence[Ended],
    options: DecodingOptions,
) -> Step:
    """Returns a step as a trace records it.

    Args:
        living: the live hypotheses, each with its parent's row.
        fates: for each live hypothesis, the fates of the symbols that were taken.
        ended: all hypotheses that have ended so far, with distinct texts.
    """
    live = [
        Live(
            parent,
            partial.tokens[-1] if partial.tokens else -1,
            partial.log_probs[-1] if partial.tokens else 0.0,
            partial.total,
            penalized(partial.total, len(partial.tokens), options),
            history_of(source, partial.tokens) % len(source),
            tuple(sorted(banned(partial.tokens, options, stepper.vocabulary_size))),
            considered(partial, log_probs, options, of_partial),
        )
        for (parent, partial), log_probs, of_partial in zip(living, distributions, fates, strict=True)
    ]
    num_wanted = 1 if options.num_beams > 1 or options.sampling is not None else options.num_hypotheses
    scores = sorted((hypothesis.score for hypothesis in ended), reverse=True)
    bound = scores[num_wanted - 1] if options.patience is None and len(scores) >= num_wanted else None
    lives = {Fate.LIVES, Fate.SEARCH_ENDED}
    totals = [total for each in live for _, _, total, fate in each.candidates if fate in lives]
    best = max((penalized(total, options.max_length + 1, options) for total in totals), default=None)
    return Step(live, bound, best)


def naive_draw(stepper: FakeStepper, source: Sequence[int], options: DecodingOptions, number: int) -> Searched:
    """Draws one target symbol by symbol."""
    sampling = options.sampling
    assert sampling is not None
    random = np.random.Generator(np.random.Philox(key=np.array([sampling.seed, number], np.uint64)))
    partial = Partial()
    trace: list[tuple[list[Partial], list[Ended]]] = []
    steps: list[Step] = []
    while True:
        trace.append(([partial], []))
        log_probs = next_log_probs(stepper, source, partial.tokens, options)
        values = ranking(log_probs, partial.tokens, options)
        symbol: int | None = None
        if len(partial.tokens) < len(options.target_prefix):
            symbol = options.target_prefix[len(partial.tokens)]
            values = log_probs
        else:
            order = sorted((s for s in range(len(values)) if values[s] > BANNED), key=lambda s: -values[s])
            order = order[: sampling.top_k or MAX_SAMPLED_CANDIDATES]
            point = random.random()
            if order:
                weights = [math.exp((values[s] - values[order[0]]) / sampling.temperature) for s in order]
                kept, reached = 0, 0.0
                while kept < len(order) and reached < sampling.top_p * sum(weights):
                    reached += weights[kept]
                    kept += 1
                if sampling.top_p >= 1:
                    kept = len(order)
                symbol = order[kept - 1]
                for place in range(kept):
                    if point * sum(weights[:kept]) < sum(weights[: place + 1]):
                        symbol = order[place]
                        break
        longer, hypothesis = partial, None
        if symbol is None or (symbol != EOS and len(partial.tokens) == options.max_length):
            value = score(stepper, source, partial, len(partial.tokens), options)
            hypothesis = Ended(partial.tokens, partial.log_probs, False, value)
            fates = {}
        else:
            summands = (*partial.log_probs, log_probs[symbol])
            longer = replace(partial, log_probs=summands, total=partial.total + values[symbol])
            fates = {symbol: Fate.ENDED if symbol == EOS else Fate.LIVES}
            if symbol == EOS:
                value = score(stepper, source, longer, len(summands), options)
                hypothesis = Ended(partial.tokens, summands, True, value)
            else:
                longer = replace(longer, tokens=(*partial.tokens, symbol))
        ended = [] if hypothesis is None else [hypothesis]
        steps.append(step_of(stepper, source, [(0, partial)], [log_probs], [fates], ended, options))
        if hypothesis is not None:
            return Searched([hypothesis], trace, steps, [(len(steps) - 1, 0, hypothesis)])
        partial = longer


def naive_beam(
    stepper: FakeStepper,
    source: Sequence[int],
    options: DecodingOptions,
    first: int | None = None,
    text_of: TextOf = tuple,
) -> Searched:
    """Runs beam search by its definition: sorts all continuations and splits them into ended and live hypotheses.

    Args:
        first: if not None, the forced symbol after the prefix.
    """
    k = options.beam_size
    # A single hypothesis is always distinct.
    text_of = text_of if options.num_hypotheses > 1 else tuple
    living = [Partial()]
    parents = [0]
    ended: list[Ended] = []
    trace: list[tuple[list[Partial], list[Ended]]] = []
    steps: list[Step] = []
    ends: list[tuple[int, int, Ended]] = []

    def end(row: int, partial: Partial, by_eos: bool) -> None:
        value = score(stepper, source, partial, len(partial.log_probs), options)
        ended.append(Ended(partial.tokens, partial.log_probs, by_eos, value))
        ends.append((len(steps), row, ended[-1]))

    while living and not enough(distinct(ended, text_of), living, options):
        trace.append((living, ended.copy()))
        distributions = [next_log_probs(stepper, source, partial.tokens, options) for partial in living]
        orders = [ranking(d, partial.tokens, options) for d, partial in zip(distributions, living, strict=True)]
        fates: list[dict[int, Fate]] = [{} for _ in living]
        length = len(living[0].tokens)
        for row, log_probs in enumerate(distributions):
            forced = options.target_prefix[length] if length < len(options.target_prefix) else None
            forced = first if length == len(options.target_prefix) and first is not None else forced
            if forced is not None:
                value = log_probs[forced] if length < len(options.target_prefix) else orders[row][forced]
                orders[row] = [-math.inf] * len(log_probs)
                orders[row][forced] = value
        pool = [
            (partial.total + values[symbol], row, symbol)
            for row, (partial, values) in enumerate(zip(living, orders, strict=True))
            for symbol in sorted(range(stepper.vocabulary_size), key=lambda s: -values[s])
            if values[symbol] > BANNED
        ]
        pool.sort(key=lambda entry: -entry[0])
        following: list[Partial] = []
        following_rows: list[int] = []
        if length == options.max_length:
            for row, (partial, log_probs, values) in enumerate(zip(living, distributions, orders, strict=True)):
                if max(range(len(values)), key=lambda i: values[i]) == EOS and values[EOS] > BANNED:
                    summands = (*partial.log_probs, log_probs[EOS])
                    end(row, replace(partial, log_probs=summands, total=partial.total + values[EOS]), True)
                    fates[row][EOS] = Fate.ENDED
                else:
                    end(row, partial, False)
            pool = []
        elif not pool:
            for row, partial in enumerate(living):
                end(row, partial, False)
        for place, (total, row, symbol) in enumerate(pool):
            partial = living[row]
            longer = Partial((*partial.tokens, symbol), (*partial.log_probs, distributions[row][symbol]), total)
            if symbol != EOS and len(following) < k:
                following.append(longer)
                following_rows.append(row)
                fates[row][symbol] = Fate.LIVES
            if symbol == EOS and place < k:
                end(row, replace(longer, tokens=partial.tokens), True)
                fates[row][EOS] = Fate.ENDED
                if k == 1:  # greedy
                    break
        if following and enough(distinct(ended, text_of), following, options):
            for row, partial in zip(following_rows, following, strict=True):
                fates[row][partial.tokens[-1]] = Fate.SEARCH_ENDED
        lives = list(zip(parents, living, strict=True))
        steps.append(step_of(stepper, source, lives, distributions, fates, distinct(ended, text_of), options))
        living, parents = following, following_rows
        if options.scores_prefix and living and len(living[0].tokens) == len(options.target_prefix):
            end(0, living[0], False)
            break
    hypotheses = sorted(distinct(ended, text_of), key=by_score)
    return Searched(hypotheses[: options.num_hypotheses], trace, steps, ends)


def enough(ended: Sequence[Ended], living: Sequence[Partial], options: DecodingOptions) -> bool:
    """Returns True if the search may stop."""
    if options.beam_size == 1:
        return bool(ended)
    if options.patience is not None:
        return len(ended) >= max(math.ceil(options.patience * options.beam_size - 1e-5), options.num_hypotheses)
    if len(ended) < options.num_hypotheses:
        return False
    nth = sorted([hypothesis.score for hypothesis in ended], reverse=True)[options.num_hypotheses - 1]
    # A live hypothesis scores best if its total stays the same until the maximum length.
    return all(penalized(partial.total, options.max_length + 1, options) <= nth for partial in living)


def best_by_brute_force(stepper: FakeStepper, source: Sequence[int], options: DecodingOptions) -> list[Ended]:
    """Returns the n best of all possible targets: those with EOS, and those cut at the maximum length."""
    symbols = [s for s in range(stepper.vocabulary_size) if s not in (SPECIAL_IDS.pad, SPECIAL_IDS.bos, EOS)]
    everything = []
    for length in range(options.max_length + 1):
        for tokens in itertools.product(symbols, repeat=length):
            steps = [next_log_probs(stepper, source, tokens[:place], options) for place in range(length + 1)]
            summands = [step[symbol] for step, symbol in zip(steps, [*tokens, EOS], strict=True)]
            is_cut = length == options.max_length and max(steps[-1]) != steps[-1][EOS]
            counted = tuple(summands[:-1] if is_cut else summands)
            value = score(stepper, source, Partial(tokens, counted, sum(counted)), len(counted), options)
            everything.append(Ended(tokens, counted, not is_cut, value))
    everything.sort(key=lambda hypothesis: -hypothesis.score)
    return everything[: options.num_hypotheses]
