"""A torch model, or an ensemble, as a Stepper: training validates with it, and an export is compared with it.

Shapes: N members or bans, B sources, R rows, S source positions, V target vocabulary, K candidates.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.runtime.stepper import (
    NO_ID,
    SOURCE_MASK,
    DecoderState,
    Ids,
    StepOutput,
    Taken,
    attention_layout,
    mask_positions,
    pad_sources,
    select_sources,
    state_of,
)
from attendant.training.kernels.hardware import at_least_float32
from attendant.training.model.readout import IMPOSSIBLE
from attendant.training.model.seq2seq import Encoded, Seq2Seq


def candidates(
    logits: Tensor, forced_ids: Tensor, banned_ids: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the most probable symbols after the bans. The exported step graph contains this too.

    Args:
        logits: [R, V].
        forced_ids: [R] int64, symbols whose log-probability is wanted; -1 for none.
        banned_ids: [R, N] int64, symbols removed before normalization; -1 is padding.
        num_candidates: K, at most V.

    Returns:
        log-probabilities [R, K], normalized over V, in falling order; their ids [R, K], ties by the lower id; and the
        log-probabilities [R] of the forced symbols, 0 where none.
    """
    log_probs = torch.log_softmax(ban(at_least_float32(logits), banned_ids), -1)
    forced = log_probs.gather(1, forced_ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    forced = torch.where(forced_ids < 0, 0.0, forced)
    return *top(log_probs, num_candidates), forced


def ban(logits: Tensor, banned_ids: Tensor) -> Tensor:
    """Makes banned symbols impossible: logits [R, V], banned_ids [R, N], in which -1 is padding."""
    places = banned_ids.clamp(min=0)
    # Padding writes the present value again, and the minimum prefers a real ban of the same symbol.
    values = torch.where(banned_ids < 0, logits.gather(1, places), IMPOSSIBLE)
    return logits.scatter_reduce(1, places, values, "amin")


def top(log_probs: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Returns the K largest of log_probs [R, V] and their ids, ties by the lower id."""
    values, ids = torch.topk(log_probs, num_candidates, -1)
    if torch.compiler.is_exporting():
        return values, ids  # ONNX TopK itself prefers the lower id.
    # torch.topk takes equal values in any order: where a row has some, sort it in full.
    at_least = (log_probs >= values[:, -1:]).sum(-1) > num_candidates
    tied = at_least | (values[:, 1:] == values[:, :-1]).any(-1)
    if tied.any():
        order = log_probs[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = order.values[:, :num_candidates], order.indices[:, :num_candidates]
    return values, ids


class Ensemble(nn.Module):
    """The mean of its members' next-symbol probabilities (Sutskever et al. 2014, section 3.6).

    The members may differ in architecture and size. They share both vocabularies and the start symbol. A TorchStepper
    accepts an ensemble instead of a model. State tensors are the members' own; each name has the member's number.

    Attributes:
        members: the models.
        start_id: the input of the first step.
        target_vocabulary_size: V.
    """

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        """Takes the models as they are.

        Raises:
            ValueError: no members, or members of several vocabularies or start symbols.
        """
        super().__init__()
        kinds = {(model.source_vocabulary_size, model.target_vocabulary_size, model.start_id) for model in members}
        if len(kinds) != 1:
            raise ValueError("members of an ensemble need the same vocabularies and the same start symbol")
        self.members = nn.ModuleList(members)
        self._members = tuple(members)
        self.target_vocabulary_size, self.start_id = members[0].target_vocabulary_size, members[0].start_id

    def forward(
        self, source_ids: Tensor, source_lengths: Tensor, previous_ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Returns the logarithms of the mean probabilities, [B, T, V] or [N, V], as Seq2Seq.forward."""
        inputs = (source_ids, source_lengths, previous_ids, positions)
        return _mean_log_probs([member(*inputs) for member in self._members])

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """Encodes source_ids [B, S] of lengths [B], for `step`."""
        encoded = [member.encode(source_ids, source_lengths) for member in self._members]
        return Encoded(
            _numbered([each.row_tensors for each in encoded]), _numbered([each.source_tensors for each in encoded])
        )

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: Mapping[str, Tensor],
        source_tensors: Mapping[str, Tensor],
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Feeds each row its previous symbol, as Seq2Seq.step.

        Returns:
            logits [R, V], which are the logarithms of the mean probabilities; the new row tensors; and the mean of the
            attention weights [R, S], None where a member has no attention.
        """
        steps = [
            member.step(previous_ids, _own(row_tensors, number), _own(source_tensors, number), source_rows, row_slots)
            for number, member in enumerate(self._members)
        ]
        weights = [each for _, _, each in steps if each is not None]
        return (
            _mean_log_probs([logits for logits, _, _ in steps]),
            _numbered([rows for _, rows, _ in steps]),
            torch.stack(weights).mean(0) if len(weights) == len(steps) else None,
        )


def _mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    log_probs = torch.stack([torch.log_softmax(each, -1) for each in logits])
    return torch.logsumexp(log_probs, 0) - math.log(len(logits))


def _numbered(of_members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{number}.{name}": tensor for number, own in enumerate(of_members) for name, tensor in own.items()}


def _own(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    prefix = f"{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Decodable(Protocol):
    """A model that a TorchStepper decodes with: a Seq2Seq, an Ensemble, or a module with their methods."""

    target_vocabulary_size: int
    training: bool

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded: ...

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: Mapping[str, Tensor],
        source_tensors: Mapping[str, Tensor],
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]: ...

    def to(self, device: torch.device) -> Any: ...

    def eval(self) -> Any: ...

    def train(self) -> Any: ...


class TorchStepper:
    """Decodes with a model in memory: takes and returns numpy arrays, and computes with torch tensors on the device.

    The model is not copied. It is in evaluation mode during each call, and its training may continue between calls.
    """

    def __init__(self, model: Decodable, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._model: Decodable = model.to(self._device)

    @property
    def vocabulary_size(self) -> int:
        return self._model.target_vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        source_ids, lengths = pad_sources(sources, PAD_ID)
        with evaluating(self._model):
            encoded = self._model.encode(self._tensor(source_ids), self._tensor(lengths))
            for name, tensor in encoded.source_tensors.items():
                # An ensemble's have their member's number before the name.
                if masked is not None and name.rpartition(".")[2] == SOURCE_MASK:
                    mask_positions(tensor, masked)
        return DecoderState(encoded.row_tensors, encoded.source_tensors, lengths, np.arange(len(sources)))

    def step(
        self,
        before: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        state = state_of(before)
        num_rows = state.num_rows
        forced = np.full(num_rows, NO_ID, np.int64) if forced_ids is None else forced_ids
        banned = np.empty((num_rows, 0), np.int64) if banned_ids is None else banned_ids
        source_rows, row_slots = attention_layout(state.row_sources, state.num_sources)
        with evaluating(self._model):
            logits, rows, weights = self._model.step(
                self._tensor(previous_ids),
                state.row_tensors,
                state.source_tensors,
                self._tensor(source_rows),
                self._tensor(row_slots),
            )
            log_probs, ids, forced_log_probs = candidates(
                logits, self._tensor(forced), self._tensor(banned), min(num_candidates, self.vocabulary_size)
            )
        output = StepOutput(
            candidate_ids=ids.cpu().numpy(),
            candidate_log_probs=log_probs.float().cpu().numpy(),
            forced_log_probs=forced_log_probs.float().cpu().numpy(),
            attention=weights.float().cpu().numpy() if attention and weights is not None else None,
        )
        return output, DecoderState(rows, state.source_tensors, state.source_lengths, state.row_sources)

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        state = state_of(before)
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        row_tensors = _take(state.row_tensors, self._tensor(rows))
        if kept is None:
            return DecoderState(row_tensors, state.source_tensors, state.source_lengths, row_sources)
        source_tensors = _take(state.source_tensors, self._tensor(kept))
        return DecoderState(row_tensors, source_tensors, state.source_lengths[kept], row_sources)

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        states = [state_of(part) for part in parts]
        first_source = np.cumsum([0, *(state.num_sources for state in states[:-1])])
        return DecoderState(
            row_tensors={
                name: _cat_padded([state.row_tensors[name] for state in states]) for name in states[0].row_tensors
            },
            source_tensors={
                name: _cat_padded([state.source_tensors[name] for state in states]) for name in states[0].source_tensors
            },
            source_lengths=np.concatenate([state.source_lengths for state in states]),
            row_sources=np.concatenate(
                [state.row_sources + start for state, start in zip(states, first_source, strict=True)]
            ),
        )

    def _tensor(self, array: Ids) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


@contextmanager
def evaluating(model: Decodable | nn.Module) -> Iterator[None]:
    """Disables gradients and dropout in its context; restores the model's mode at the end."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if was_training:
            model.train()


def _take(tensors: Mapping[str, Tensor], indices: Tensor) -> dict[str, Tensor]:
    return {name: tensor.index_select(0, indices) for name, tensor in tensors.items()}


def _cat_padded(tensors: Sequence[Tensor]) -> Tensor:
    """Joins tensors [N, ...] whose other axes may have several widths; zero (False in a mask) fills up."""
    widest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    return torch.cat([F.pad(tensor, _padding(tensor, widest)) for tensor in tensors])


def _padding(tensor: Tensor, sizes: Sequence[int]) -> list[int]:
    """Returns F.pad's argument, which begins with the last axis, for these sizes of all axes but the first."""
    return [part for axis in range(len(sizes), 0, -1) for part in (0, sizes[axis - 1] - tensor.shape[axis])]
