"""The perplexity of references, by the stepper that decodes: of runs, ensembles and bundles alike.

Several references of one source all count. Sources that the tokenizer leaves nothing of do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from attendant.runtime.decoding.batch import score_all
from attendant.training.evaluation.decoding import Decoded, TextModel
from attendant.training.evaluation.metrics import Floats64, PerplexityName, Statistics
from attendant.training.perplexity import num_words_and_end, perplexity

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


def score_references(model: TextModel, decoded: Sequence[Decoded]) -> ScoredReferences:
    """Scores every reference of the N examples that `model` has decoded, whose sources are tokenized already."""
    texts = [
        (place, reference)
        for place, one in enumerate(decoded)
        if one.source_ids
        for reference in one.example.references
    ]
    targets = model.target_tokenizer.encode_batch([reference for _, reference in texts])
    pairs = [(decoded[place].source_ids, target) for (place, _), target in zip(texts, targets, strict=True)]
    rows = np.zeros((3, len(decoded)))
    for (place, reference), found in zip(texts, score_all(model.stepper, pairs, model.special_ids), strict=True):
        rows[:, place] += found.log_prob, len(found.token_log_probs), num_words_and_end(reference)
    return ScoredReferences(rows[0], {"perplexity": rows[1], "word_perplexity": rows[2]})


def perplexity_statistics(metric: PerplexityName, scored: ScoredReferences) -> Statistics:
    """The metric taken apart, as `take_statistics` takes those of texts."""
    return Statistics(
        metric=metric,
        rule=f"exp of the mean negative log-probability per {COUNTED[metric]} of all references, their ends counted",
        rows=np.stack([scored.log_probs, scored.counts[metric]], 1),
        value_of=lambda totals: perplexity(*totals.tolist()),
    )
