"""The perplexity of references, by the stepper that decodes: of runs, ensembles and bundles alike.

Several references of one source all count. Sources that the tokenizer leaves nothing of do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from attendant.runtime.decoding.offline import score_all
from attendant.runtime.perplexity import count_words, perplexity
from attendant.training.data.corpus import encode_source
from attendant.training.data.pairs import Example
from attendant.training.evaluation.decoding import TextModel
from attendant.training.evaluation.metrics import Floats64, PerplexityName, Statistics

COUNTED: Final[dict[PerplexityName, str]] = {"perplexity": "token", "word_perplexity": "word"}


@dataclass(frozen=True, slots=True)
class ScoredReferences:
    """What a model says of the references of N examples, each summed over them.

    Attributes:
        log_probs: [N].
        counts: by metric, [N] tokens or words, ends included.
    """

    log_probs: Floats64
    counts: dict[PerplexityName, Floats64]


def score_references(model: TextModel, examples: Sequence[Example]) -> ScoredReferences:
    """Scores every reference of every example."""
    sources = encode_source(
        model.source_tokenizer, [example.source for example in examples], append_eos=model.append_eos
    )
    texts = [
        (place, reference)
        for place, (example, source) in enumerate(zip(examples, sources, strict=True))
        if len(source) > model.append_eos
        for reference in example.references
    ]
    targets = model.target_tokenizer.encode_batch([reference for _, reference in texts])
    pairs = [(sources[place], target) for (place, _), target in zip(texts, targets, strict=True)]
    rows = np.zeros((3, len(examples)))
    for (place, reference), found in zip(texts, score_all(model.stepper, pairs, model.special_ids), strict=True):
        rows[:, place] += found.log_prob, len(found.token_log_probs), count_words(reference)
    return ScoredReferences(rows[0], {"perplexity": rows[1], "word_perplexity": rows[2]})


def perplexity_statistics(metric: PerplexityName, scored: ScoredReferences) -> Statistics:
    """The metric taken apart, as `take_statistics` takes those of texts."""
    return Statistics(
        metric=metric,
        rule=f"exp of the mean negative log-probability per {COUNTED[metric]} of all references, their ends counted",
        rows=np.stack([scored.log_probs, scored.counts[metric]], 1),
        value_of=lambda totals: perplexity(*totals.tolist()),
    )
