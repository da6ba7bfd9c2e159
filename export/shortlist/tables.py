"""A run's lists: the lexicon of its training pairs and the frequencies of its target symbols."""

from typing import Final

import numpy as np

from export.from_run import MAX_BEAM_SIZE
from export.shortlist.lexicon import MAX_LINKS, learn_lexicon
from export.verification import Say, say_nothing
from runtime.errors import UserError
from runtime.shortlist import Shortlist
from runtime.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from training.checkpoint import LoadedRun
from training.data.corpus import Corpus
from training.data.training_part import stored_corpus

FREQUENT_PART: Final = 3 / 8
"""Of a list: symbols that any sentence may have, whatever its source (docs/shortlist.md says what that covers)."""

CANDIDATES_PART: Final = 1 / 12
"""Of a list's size: target symbols kept for a source symbol. Only short sources come to the last of them."""

MIN_SIZE: Final = MAX_BEAM_SIZE + 1
"""So that the widest beam finds enough symbols, and EOS."""


def shortlist_of_run(run: LoadedRun, size: int, say: Say = say_nothing) -> Shortlist:
    """Learns it from the run's training pairs.

    Raises:
        UserError: the model or the run has no use for it, or lacks what it is made of; a size that makes no sense.
    """
    vocabulary_size = run.target_tokenizer.vocabulary_size
    smallest = min(MIN_SIZE, vocabulary_size - 1)
    if not smallest <= size < vocabulary_size:
        raise UserError(
            f"--shortlist {size}: the target vocabulary of {run.path} has {vocabulary_size} symbols, a list has "
            f"{smallest} to {vocabulary_size - 1}; it pays for vocabularies many times as large as the list"
        )
    if not any(tensor.scope == "source" for tensor in run.model.state_tensors()):
        raise UserError(f"--shortlist is for models with attention, and {run.path} has none: leave it out")
    folder = run.recipe.data.corpus_folder(run.path)
    corpus = stored_corpus(
        folder,
        run.recipe.data,
        digest=run.data_digest,
        append_eos=run.recipe.source.append_eos,
        tokenizers=(run.source_tokenizer, run.target_tokenizer),
    )
    if corpus is None:
        raise UserError(
            f"--shortlist is learned from the training pairs, and {folder} does not have them any more: "
            f"`python -m training {run.path / 'recipe.toml'} --output {run.path} --resume` tokenizes them again"
        )
    say("learning what symbols are translated to")
    return make_shortlist(corpus, run.source_tokenizer.vocabulary_size, vocabulary_size, size)


def make_shortlist(
    corpus: Corpus, source_vocabulary_size: int, target_vocabulary_size: int, size: int, *, max_links: int = MAX_LINKS
) -> Shortlist:
    """The tables of lists of `size` symbols."""
    counts = np.bincount(corpus.targets.ids, minlength=target_vocabulary_size)
    # EOS ends no target of the corpus and PAD and BOS are never generated: first those two that every list has.
    counts[[PAD_ID, BOS_ID]] = -1
    counts[[EOS_ID, UNK_ID]] = counts.max() + np.array([2, 1])
    frequent = np.argsort(-counts, kind="stable")[:size].astype(np.int32)
    num_candidates = max(1, round(size * CANDIDATES_PART))
    lexicon = learn_lexicon(corpus, source_vocabulary_size, num_candidates, max_links=max_links)
    return Shortlist(frequent, max(2, round(size * FREQUENT_PART)), lexicon.candidates, target_vocabulary_size)
