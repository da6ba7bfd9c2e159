"""Reach of the loss into the past: gradient norms against distance in time.

l_T is the cross-entropy of target position T (1, 2, ...) under teacher forcing, s_t the state that step t passes to the
next (the hidden states of all layers, an LSTM's cells, with input feeding the attentional vector), s_0 the decoder's
first state, e_j the embedding of source position j of S. Measured are, without dropout and in float64,

    r(k) = |dl_T / ds_(T-k)| / |dl_T / ds_(T-1)|          k = 1 ... T steps back through the decoder
    q(d) = |dl_T / de_j|     / |dl_T / ds_(T-1)|          d = T + S - j: on from s_0 back through the encoder

The derivatives are total: through the recurrence, and through all other inputs that a later step has from an earlier
one. d counts the steps of the one-directional path, from the end of the source as it is read. Attention and an
encoder's second direction offer shorter paths, and q shows if the model uses them. Dividing by the gradient at the
state that step T itself is fed removes the size of the error at T. The rest is the product of Jacobians whose shrinking
(vanishing) or growing (exploding) with k makes recurrent networks hard to train (Bengio et al. 1994; Pascanu et al.
2013, eq. 5).

Shapes: B pairs of a batch, S source positions, T target positions, E embedding size.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from attendant.runtime.stepper import attention_layout
from attendant.training.data.batches import Batch, collate
from attendant.training.data.corpus import Corpus, TokenSequences
from attendant.training.model import Seq2Seq
from attendant.training.model.decoder import COVERAGE, VECTOR

NOT_RECURRENT = frozenset((COVERAGE, VECTOR))
"""Row tensors that are no activations of the recurrence: a sum of attention weights, and a constant."""

BATCH_PAIRS = 16
MAX_POSITIONS = 24  # Target positions of a batch whose loss is followed back, at even distances if there are more.
MIN_VALUES = 10  # A distance that fewer pairs of a loss and a state have is left out.


@dataclass(frozen=True, slots=True)
class Reach:
    """Relative gradient norms by distance.

    Attributes:
        distances: [K] in steps, rising.
        median, low, high: [K] the median and the quartiles over all positions of all pairs.
    """

    distances: NDArray[np.int64]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def factor_per_step(self) -> float | None:
        """The factor of the gradient per step back: e to the slope of log median over distance (least squares). Below 1
        the gradient vanishes, above 1 it explodes. None if fewer than three distances are known.
        """
        known = self.median > 0
        if known.sum() < 3:
            return None
        return float(np.exp(np.polyfit(self.distances[known], np.log(self.median[known]), 1)[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The measurements of a model.

    Attributes:
        states: r(k).
        inputs: q(d).
        nearest: the median of |dl_T / ds_(T-1)|, which the others are relative to.
    """

    states: Reach
    inputs: Reach
    num_pairs: int
    num_positions: int
    nearest: float


_Norms = list[tuple[NDArray[np.int64], NDArray[np.float64]]]  # Distances and their norms.


def measure_gradients(model: Seq2Seq, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Gradients:
    """Follows the loss of pairs back in time.

    Args:
        model: is left as it is; a copy on the CPU is measured.
        sources: ids as the encoder reads them, EOS included if it is appended; not empty.
        targets: ids without BOS and EOS.
    """
    measured = copy.deepcopy(model).cpu().double().eval()
    order = sorted(range(len(sources)), key=lambda index: (len(targets[index]), len(sources[index])))
    corpus = Corpus(TokenSequences.of(sources), TokenSequences.of(targets), num_too_long=0)
    states: _Norms = []
    inputs: _Norms = []
    nearest: list[NDArray[np.float64]] = []
    for start in range(0, len(order), BATCH_PAIRS):
        batch = collate(corpus, order[start : start + BATCH_PAIRS], measured.start_id)
        nearest += _follow(measured, batch, states, inputs)
    all_nearest = np.concatenate(nearest)
    return Gradients(
        states=_reach(states),
        inputs=_reach(inputs),
        num_pairs=len(sources),
        num_positions=len(all_nearest),
        nearest=float(np.median(all_nearest)),
    )


def _follow(model: Seq2Seq, batch: Batch, states: _Norms, inputs: _Norms) -> list[NDArray[np.float64]]:
    """Adds the relative norms of a batch; returns the nearest ones, absolute, of each target position."""
    num_pairs, num_steps = batch.previous_ids.shape
    positions = np.unique(np.linspace(0, num_steps - 1, min(num_steps, MAX_POSITIONS)).round().astype(int))
    next_ids = torch.full((num_pairs * num_steps,), -1)
    next_ids[batch.positions] = batch.target_ids
    embedded, fed, losses = _run(model, batch, next_ids.view(num_pairs, num_steps), set(positions.tolist()))
    lengths = batch.source_lengths.numpy()
    reads_backwards = model.config.encoder.reverse_source
    all_nearest = []
    for position in positions:
        wanted = [embedded, *(tensor for step in fed[: position + 1] for tensor in step)]
        gradients = iter(torch.autograd.grad(losses[position], wanted, retain_graph=True, allow_unused=True))
        of_inputs = _norms([next(gradients)], 2, embedded.shape[:2])
        of_states = np.stack(
            [_norms([next(gradients) for _ in step], 1, (num_pairs,)) for step in fed[: position + 1]], 1
        )
        # A pair that ended before has no loss here, and one that is certain beyond float64 no gradient.
        rows = np.flatnonzero(of_states[:, -1] > 0)
        nearest = of_states[rows, -1]
        back = np.arange(position + 1, 0, -1)
        states.append((np.tile(back, len(rows)), (of_states[rows] / nearest[:, None]).ravel()))
        for row, norm in zip(rows, nearest, strict=True):
            length = lengths[row]
            from_end = np.arange(length) if reads_backwards else np.arange(length)[::-1]
            inputs.append((position + 1 + from_end, of_inputs[row, :length] / norm))
        all_nearest.append(nearest)
    return all_nearest


def _run(
    model: Seq2Seq, batch: Batch, next_ids: Tensor, positions: set[int]
) -> tuple[Tensor, list[list[Tensor]], dict[int, Tensor]]:
    """Runs teacher forcing step by step, as in decoding.

    Returns:
        the embedded sources [B, S, E]; the recurrent tensors that each step is fed; and the loss of each of
        `positions`, summed over the batch, whose rows don't meet.
    """
    kept: list[Tensor] = []
    hook = model.embedding_of_sources.register_forward_hook(lambda module, arguments, output: kept.append(output))
    encoded = model.encode(batch.source_ids, batch.source_lengths)
    hook.remove()
    # Zeros of a first state are no result of a computation yet.
    rows = {name: tensor.requires_grad_() for name, tensor in encoded.row_tensors.items()}
    num_pairs = len(batch.source_lengths)
    layout = [torch.from_numpy(places) for places in attention_layout(np.arange(num_pairs), num_pairs)]
    fed, losses = [], {}
    for position in range(batch.previous_ids.shape[1]):
        fed.append([tensor for name, tensor in rows.items() if name not in NOT_RECURRENT])
        logits, rows, _ = model.step(batch.previous_ids[:, position], rows, encoded.source_tensors, *layout)
        if position in positions:
            losses[position] = F.cross_entropy(logits, next_ids[:, position], ignore_index=-1, reduction="sum")
    return kept[0], fed, losses


def _reach(norms: _Norms) -> Reach:
    distances, values = (np.concatenate(parts) for parts in zip(*norms, strict=True))
    present, counts = np.unique(distances, return_counts=True)
    kept = present[counts >= MIN_VALUES]
    quartiles = [np.percentile(values[distances == distance], (25, 50, 75)) for distance in kept]
    low, median, high = np.array(quartiles).reshape(-1, 3).T
    return Reach(kept, median, low, high)


def _norms(gradients: Sequence[Tensor | None], num_dims: int, shape: Sequence[int]) -> NDArray[np.float64]:
    """Returns the norms over all but the first `num_dims` dimensions, of the tensors together; None is zero."""
    squares = torch.zeros(*shape, dtype=torch.float64)
    for gradient in gradients:
        if gradient is not None:
            squares += gradient.flatten(num_dims).square().sum(-1)
    return squares.sqrt().numpy()
