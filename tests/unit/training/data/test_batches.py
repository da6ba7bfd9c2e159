"""Tests of batches: each pair occurs once, no batch exceeds the budget, and (seed, epoch) determines the order."""

import random

import numpy as np
import pytest

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.runtime.errors import UserError
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.data.config import BatchConfig
from attendant.training.data.corpus import Corpus, TokenSequences


def random_corpus(num_pairs: int, max_length: int, seed: int = 3) -> Corpus:
    generator = random.Random(seed)

    def side() -> TokenSequences:
        return TokenSequences.of(
            [[generator.randint(4, 9)] * generator.randint(1, max_length) for _ in range(num_pairs)]
        )

    return Corpus(side(), side(), num_too_long=0)


def plan(corpus: Corpus, max_tokens: int, seed: int = 1) -> BatchPlan:
    return BatchPlan(corpus, BatchConfig(max_tokens=max_tokens), seed)


@pytest.mark.parametrize("max_tokens", [31, 64, 500, 10**6])
def test_every_pair_comes_once_and_no_batch_breaks_the_budget(max_tokens: int) -> None:
    corpus = random_corpus(300, 15)
    batches = plan(corpus, max_tokens)
    for epoch in range(3):
        indices = batches.epoch(epoch)
        assert len(indices) == batches.num_batches
        assert sorted(np.concatenate(indices)) == list(range(300))
        for batch in indices:
            source_ids = collate(corpus, batch, BOS_ID).source_ids
            previous_ids = collate(corpus, batch, BOS_ID).previous_ids
            assert source_ids.numel() + previous_ids.numel() <= max_tokens


def test_batches_are_full_and_of_like_lengths() -> None:
    corpus = random_corpus(2000, 15)
    batches = plan(corpus, 400).epoch(0)
    total = len(corpus.sources.ids) + len(corpus.targets.ids) + len(corpus)
    assert total / (len(batches) * 400) > 0.85
    assert all(np.ptp(corpus.sources.lengths[batch]) <= 1 for batch in batches)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    corpus = random_corpus(300, 8)

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in plan(corpus, 100, seed).epoch(epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # The pairs of a batch change too, not only the order of fixed batches.
    assert {frozenset(batch) for batch in order(1, 0)} != {frozenset(batch) for batch in order(1, 1)}


def test_a_pair_beyond_the_budget_is_refused() -> None:
    corpus = Corpus(TokenSequences.of([[4] * 5]), TokenSequences.of([[4] * 6]), num_too_long=0)
    assert plan(corpus, 12).num_batches == 1
    with pytest.raises(UserError, match=r"batches\.max_tokens = 11 does not hold .* raise it to 12"):
        plan(corpus, 11)


def test_collate_adds_start_end_and_padding() -> None:
    corpus = Corpus(TokenSequences.of([[5, 6, EOS_ID], [7]]), TokenSequences.of([[8], [9, 4]]), num_too_long=0)
    batch = collate(corpus, [0, 1], BOS_ID)
    assert batch.source_ids.tolist() == [[5, 6, EOS_ID], [7, PAD_ID, PAD_ID]]
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.previous_ids.tolist() == [[BOS_ID, 8, PAD_ID], [BOS_ID, 9, 4]]
    assert batch.positions.tolist() == [0, 1, 3, 4, 5]
    assert batch.target_ids.tolist() == [8, EOS_ID, 9, 4, EOS_ID]
    assert batch.num_target_tokens == 5
