"""A torch model as a Stepper: what training validates with, and what an export is compared with. Ensembles likewise."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.runtime.stepper import (
    NO_ID,
    DecoderState,
    Ids,
    StepOutput,
    Taken,
    attention_layout,
    pad_sources,
    select_sources,
    state_of,
)
from attendant.training.model import Seq2Seq
from attendant.training.model.stepping.candidates import candidates
from attendant.training.model.stepping.ensemble import Ensemble


class TorchStepper:
    """Decodes with a model in memory; arrays are numpy at the edge and torch tensors on the device inside.

    The model is used as it stands, in evaluation mode during each call: its training may go on in between.
    """

    def __init__(self, model: Seq2Seq | Ensemble, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._model = model.to(self._device)

    @property
    def vocabulary_size(self) -> int:
        return self._model.target_vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        source_ids, lengths = pad_sources(sources, PAD_ID)
        with evaluating(self._model):
            encoded = self._model.encode(self._tensor(source_ids), self._tensor(lengths))
        return DecoderState(encoded.row_tensors, encoded.source_tensors, lengths, np.arange(len(sources)))

    def step(
        self,
        given: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        state = state_of(given)
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

    def select(self, given: DecoderState | Taken, rows: Ids) -> DecoderState:
        state = state_of(given)
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        row_tensors = _take(state.row_tensors, self._tensor(rows))
        if kept is None:
            return DecoderState(row_tensors, state.source_tensors, state.source_lengths, row_sources)
        source_tensors = _take(state.source_tensors, self._tensor(kept))
        return DecoderState(row_tensors, source_tensors, state.source_lengths[kept], row_sources)

    def concat(self, given: Sequence[DecoderState | Taken]) -> DecoderState:
        states = [state_of(one) for one in given]
        first_source = np.cumsum([0, *(state.num_sources for state in states[:-1])])
        return DecoderState(
            row_tensors={
                # Of the row tensors only coverage has the sources' width; the others are as wide in all states.
                name: _cat_padded([state.row_tensors[name] for state in states])
                for name in states[0].row_tensors
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
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients and no dropout while it lasts; afterwards the model's mode is what it was."""
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
    """Joins [N, S, ...] tensors of several widths; zero (False in a mask) fills up."""
    width = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([F.pad(tensor, [0, 0] * (tensor.dim() - 2) + [0, width - tensor.shape[1]]) for tensor in tensors])
