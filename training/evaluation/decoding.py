"""Decodes examples by a model from text to text: its outputs, with the scores that the model gave them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.stepper import Floats, Stepper
from attendant.training.data.pairs import Example
from attendant.training.data.tokenization import encode_source


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """What an evaluation decodes with: a stepper between its two tokenizers, whatever it came from.

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

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as the encoder reads them, EOS included where it is appended."""
        return encode_source(self.source_tokenizer, texts, append_eos=self.append_eos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An example and the best output for it.

    A source that the tokenizer leaves nothing of has no `source_ids` and an empty output of log-probability 0.

    Attributes:
        source_ids: as the encoder reads them, EOS included where it is appended.
        text: the target tokenizer's decoding of `token_ids`, which are without EOS.
        log_prob: natural-log probability of the output, EOS included where it ended there.
        score: what hypotheses are ranked by: log_prob over the penalties.
        finish_reason: None where nothing was decoded.
        attention: [number of output tokens and EOS, len(source_ids)] where the options asked for it.
    """

    example: Example
    source_ids: tuple[int, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    log_prob: float = 0.0
    score: float = 0.0
    finish_reason: FinishReason | None = None
    attention: Floats | None = None


def decode_examples(
    model: TextModel,
    examples: Sequence[Example],
    options: DecodingOptions,
    *,
    rescorer: TextModel | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Decoded]:
    """Returns the best output of every example, in the order given, beside references as the target tokenizer has them.

    They are decoded longest first, many at a time, by the very batch that serves.

    Args:
        options: of the search; with `attention`, every output keeps its weights: ask for it on chosen examples only.
        rescorer: another model with the same tokenizers, by whose probabilities the hypotheses of each beam are ranked.
        progress: called with the number of examples that have just finished.
    """
    # No tokenizer writes the white space that it does not read.
    spaced = model.target_tokenizer.spaced
    examples = [Example(one.source, tuple(map(spaced, one.references))) for one in examples]
    sources = model.source_ids([example.source for example in examples])
    decodable = [index for index, source in enumerate(sources) if len(source) > model.append_eos]
    if rescorer is not None:
        options = replace(options, num_hypotheses=options.beam_size)
    given = [sources[index] for index in decodable]
    found = decode_all(model.stepper, given, options, model.special_ids, progress=progress)
    if rescorer is not None:
        found = _rescored(rescorer, given, found, options)
    decoded = [Decoded(example=example) for example in examples]
    for index, (best, *_) in zip(decodable, found, strict=True):
        decoded[index] = Decoded(
            example=examples[index],
            source_ids=tuple(sources[index]),
            text=model.target_tokenizer.decode(best.token_ids),
            token_ids=best.token_ids,
            log_prob=best.log_prob,
            score=best.score,
            finish_reason=best.finish_reason,
            attention=best.attention,
        )
    return decoded


def _rescored(
    rescorer: TextModel,
    sources: Sequence[Sequence[int]],
    found: Sequence[tuple[Hypothesis, ...]],
    options: DecodingOptions,
) -> list[tuple[Hypothesis, ...]]:
    """The n-best lists in the order of the rescorer's log P(y | x) over the length penalty."""
    pairs = [(source, one) for source, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
    eos = rescorer.special_ids.eos
    scored = decode_all(
        rescorer.stepper,
        [source for source, _ in pairs],
        [scoring_options(one.token_ids, eos, include_eos=one.finish_reason is FinishReason.EOS) for _, one in pairs],
        rescorer.special_ids,
    )
    each = iter(zip((one for _, one in pairs), scored, strict=True))
    return [
        tuple(sorted((_with_probabilities(*next(each), options) for _ in hypotheses), key=lambda one: -one.score))
        for hypotheses in found
    ]


def _with_probabilities(found: Hypothesis, scored: tuple[Hypothesis, ...], options: DecodingOptions) -> Hypothesis:
    """A hypothesis with the probabilities and the score that another model, `scored`, gives it."""
    log_probs, log_prob = scored[0].token_log_probs, scored[0].log_prob
    score = log_prob / options.penalty(len(log_probs))
    return found._replace(token_log_probs=log_probs, log_prob=log_prob, score=score)
