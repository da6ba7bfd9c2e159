"""Batches of pairs of similar lengths, limited by their padded tokens; a function of (seed, epoch).

Shapes: B pairs of a batch, S source positions, T target positions (EOS included), N positions that are not padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendant.runtime.bundle.tokenizer import EOS_ID, PAD_ID
from attendant.runtime.errors import UserError
from attendant.training.data.config import BatchConfig
from attendant.training.data.corpus import Corpus
from attendant.training.kernels.loss import SoftTargets


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one forward pass.

    Attributes:
        source_ids: [B, S] int64; source_lengths: [B] int64.
        previous_ids: [B, T] int64: the start symbol, then the target.
        positions: [N] int64: indices in the flattened [B * T] of the symbols to predict.
        target_ids: [N] int64: the symbols to predict there, EOS included.
        soft_targets: the teachers' distributions there. If None, there are no teachers.
    """

    source_ids: Tensor
    source_lengths: Tensor
    previous_ids: Tensor
    positions: Tensor
    target_ids: Tensor
    soft_targets: SoftTargets | None = None

    @property
    def num_target_tokens(self) -> int:
        return len(self.target_ids)

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.source_ids.to(device),
            self.source_lengths.to(device),
            self.previous_ids.to(device),
            self.positions.to(device),
            self.target_ids.to(device),
            None if self.soft_targets is None else SoftTargets(*(each.to(device) for each in self.soft_targets)),
        )


class BatchPlan:
    """The pairs of each batch, epoch by epoch.

    Pairs are sorted by source length, then target length, and cut where one more pair would break the budget; pairs of
    equal lengths and the order of batches change from epoch to epoch. The number of batches is always the same.
    """

    def __init__(self, corpus: Corpus, config: BatchConfig, seed: int) -> None:
        """Cuts the sorted corpus. Raises UserError: a single pair is beyond the budget."""
        self._seed = seed
        # In 32 bits: for millions of pairs, these take most of the plan's memory.
        self._source_lengths = corpus.sources.lengths.astype(np.int32)
        self._target_lengths = (corpus.targets.lengths + 1).astype(np.int32)
        order = np.lexsort((self._target_lengths, self._source_lengths))
        self._cuts = self._cut(order, config.max_tokens)

    @property
    def num_batches(self) -> int:
        return len(self._cuts) + 1

    def num_target_tokens(self, indices: NDArray[np.int64]) -> int:
        """Returns the number of target tokens, EOS included, of pairs [B] int64."""
        return int(self._target_lengths[indices].sum())

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Returns the batches of an epoch, each [B] int64 indices of pairs; they depend on (seed, epoch) alone."""
        generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        shuffled = generator.permutation(len(self._source_lengths))
        order = shuffled[np.lexsort((self._target_lengths[shuffled], self._source_lengths[shuffled]))]
        batches = np.split(order, self._cuts)
        return [batches[index] for index in generator.permutation(len(batches))]

    def _cut(self, order: NDArray[np.int64], max_tokens: int) -> list[int]:
        cuts: list[int] = []
        start = widest_target = 0
        sources, targets = self._source_lengths[order].tolist(), self._target_lengths[order].tolist()
        for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if source + target > max_tokens:
                raise UserError(
                    f"batches.max_tokens = {max_tokens} does not hold the pair of {source} source and {target} target "
                    f"positions: raise it to {source + target} or more, or lower data.max_source_tokens or "
                    "data.max_target_tokens"
                )
            widest_target = max(widest_target, target)
            # Sorted by source length, the last source is the widest.
            if (place - start + 1) * (source + widest_target) > max_tokens:
                cuts.append(place)
                start, widest_target = place, target
        return cuts


def all_batches(corpus: Corpus, config: BatchConfig) -> list[NDArray[np.int64]]:
    """Returns batches with every pair once, each [B] int64 indices; always the same. Raises UserError as BatchPlan."""
    return BatchPlan(corpus, config, seed=0).epoch(0)


def collate(corpus: Corpus, indices: NDArray[np.int64] | Sequence[int], start_id: int) -> Batch:
    """Pads pairs into one batch.

    Args:
        indices: [B] int64, the pairs' places in the corpus.
        start_id: the first symbol that the decoder is fed.
    """
    sources = [corpus.sources[index] for index in indices]
    targets = [corpus.targets[index] for index in indices]
    source_lengths = np.array([len(source) for source in sources], np.int64)
    widths = np.array([len(target) + 1 for target in targets], np.int64)
    source_ids = np.full((len(sources), int(source_lengths.max())), PAD_ID, np.int64)
    next_ids = np.full((len(targets), int(widths.max())), PAD_ID, np.int64)
    previous_ids = next_ids.copy()
    previous_ids[:, 0] = start_id
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source_ids[row, : len(source)] = source
        previous_ids[row, 1 : len(target) + 1] = target
        next_ids[row, : len(target)] = target
        next_ids[row, len(target)] = EOS_ID
    positions = np.flatnonzero(np.arange(next_ids.shape[1]) < widths[:, None])
    return Batch(
        torch.from_numpy(source_ids),
        torch.from_numpy(source_lengths),
        torch.from_numpy(previous_ids),
        torch.from_numpy(positions),
        torch.from_numpy(next_ids.reshape(-1)[positions]),
        None if corpus.soft_targets is None else corpus.soft_targets.of(indices),
    )
