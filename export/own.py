"""Models of users' own: any encoder and decoder step in PyTorch becomes a bundle.

A user's module has two methods, `encode` and `step` (Seq2SeqModule). Everything else is wrapped around it: ids of our
vocabularies become the module's, a source's tensors are gathered for its rows, logits become candidates, and recurrent
layers take the lengths of their sequences, so that padding does not reach them.

The reference for the export's comparison is the module itself, run naively: without padding, since only sources of one
length run together. So whatever depends on padding is found, and never published.

Shapes: B sources, R rows, S source positions, V symbols of the module's target vocabulary, M queries per source.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from attendant.export.contract import (
    VALID,
    Seq2SeqModule,
    SharingModule,
    State,
    UserModule,
    shares_sources,
    step_gathered,
)
from attendant.export.recurrent_layers import Lengths, with_lengths
from attendant.export.tracing import TraceableModel, traceable_parts
from attendant.export.trial import tried
from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID, UNK_ID, special_ids
from attendant.runtime.errors import UserError
from attendant.training.data.vocabulary import Vocabulary
from attendant.training.model.readout import IMPOSSIBLE
from attendant.training.model.seq2seq import Encoded
from attendant.training.model.stepper import TorchStepper


class WrappedModel(nn.Module):
    """A user's module with the interface of our models, so that tracing and the reference treat both alike.

    While it is traced, a copy with other recurrent layers runs on padded batches. Otherwise the module itself runs,
    naively: sources of one length at a time, without padding.
    """

    source_ids_of: Tensor
    target_ids_of: Tensor
    missing: Tensor

    def __init__(
        self,
        module: UserModule,
        source: Vocabulary,
        target: Vocabulary,
        state: Sequence[StateTensor],
        positional: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.start_id = BOS_ID
        self.target_vocabulary_size = len(target.module_ids)
        self.state, self.positional = tuple(state), dict(positional)
        self.row_names = [tensor.input for tensor in state if tensor.scope == "row"]
        self.has_sources = any(tensor.scope == "source" for tensor in state)
        # Not a submodule: only the copy that is traced has parameters here.
        self._naive = (module,)
        self._lengths = Lengths()
        self.traced = with_lengths(cast(nn.Module, module), self._lengths)

        def ids(side: Vocabulary, unknown: int) -> Tensor:
            return torch.tensor([number if number >= 0 else unknown for number in side.module_ids])

        # Symbols that the module lacks are never fed, except padding, whose value does not matter.
        self.register_buffer("source_ids_of", ids(source, max(source.module_ids[UNK_ID], 0)))
        self.register_buffer("target_ids_of", ids(target, max(target.module_ids[UNK_ID], 0)))
        never = [number < 0 for number in target.module_ids]
        never[PAD_ID] = True
        never[BOS_ID] = True
        self.register_buffer("missing", torch.tensor(never))

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """As Seq2Seq.encode."""
        own = self.source_ids_of[source_ids]
        if torch.compiler.is_exporting():
            with self._lengths.known(source_lengths, own.shape[1]):
                tensors = dict(cast(Seq2SeqModule, self.traced).encode(own, source_lengths))
        else:
            tensors = self._encoded_unpadded(own, source_lengths)
        if self.has_sources:
            tensors[VALID] = torch.arange(own.shape[1], device=own.device) < source_lengths.unsqueeze(1)
        rows = {name: tensors[name] for name in self.row_names}
        return Encoded(rows, {name: tensor for name, tensor in tensors.items() if name not in rows})

    def _encoded_unpadded(self, source_ids: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        (module,) = self._naive
        tensors: dict[str, Tensor] = {}
        for length, places in _by_length(lengths):
            state = module.encode(source_ids[places, :length], lengths[places])
            for name, tensor in state.items():
                wide = _widened(tensor, self.positional.get(name), source_ids.shape[1])
                tensors.setdefault(name, wide.new_zeros(len(lengths), *wide.shape[1:]))[places] = wide
        return tensors

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: State,
        source_tensors: State,
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """As Seq2Seq.step."""
        own = self.target_ids_of[previous_ids]
        sources = {name: tensor for name, tensor in source_tensors.items() if name != VALID}
        if not self.has_sources:
            module = cast(UserModule, self.traced) if torch.compiler.is_exporting() else self._naive[0]
            logits, rows, _ = step_gathered(module, own, row_tensors, {})
            return self._ordered(logits), dict(rows), None
        assert source_rows is not None
        assert row_slots is not None
        row_sources = row_slots // source_rows.shape[1]
        valid = source_tensors[VALID][row_sources]
        if torch.compiler.is_exporting() and shares_sources(self.traced):
            with self._lengths.known(source_tensors[VALID].sum(1), valid.shape[1]):
                logits, rows, weights = cast(SharingModule, self.traced).step(
                    own, row_tensors, sources, source_rows, row_slots
                )
        elif torch.compiler.is_exporting():
            gathered = {name: tensor[row_sources] for name, tensor in sources.items()}
            with self._lengths.known(valid.sum(1), valid.shape[1]):
                logits, rows, weights = cast(Seq2SeqModule, self.traced).step(own, row_tensors, gathered)
        else:
            logits, rows, weights = self._stepped_unpadded(
                own, row_tensors, sources, row_sources, source_tensors[VALID]
            )
        weights = valid.float() * 0.0 if weights is None else weights * valid
        return self._ordered(logits), dict(rows), weights

    def _stepped_unpadded(
        self, previous_ids: Tensor, row_tensors: State, sources: State, row_sources: Tensor, valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Steps the rows of sources of one length together, without padding."""
        (module,) = self._naive
        stepped: dict[str, Tensor] = {}

        def put(name: str, places: Tensor, values: Tensor) -> None:
            stepped.setdefault(name, values.new_zeros(len(row_sources), *values.shape[1:]))[places] = values

        for length, places in _by_length(valid.sum(1)[row_sources]):
            gathered = {
                name: _narrowed(tensor[row_sources[places]], self.positional.get(name), length)
                for name, tensor in sources.items()
            }
            own = {
                name: _narrowed(tensor[places], self.positional.get(name), length)
                for name, tensor in row_tensors.items()
            }
            logits, rows, weights = step_gathered(module, previous_ids[places], own, gathered)
            put("logits", places, logits)
            for name, tensor in rows.items():
                put(f"row {name}", places, _widened(tensor, self.positional.get(name), valid.shape[1]))
            if weights is not None:
                put("attention", places, _widened(weights, 1, valid.shape[1]))
        new = {name: stepped[f"row {name}"] for name in row_tensors}
        return stepped["logits"], new, stepped.get("attention")

    def _ordered(self, logits: Tensor) -> Tensor:
        """Returns logits [R, symbols of the bundle]; symbols that the module lacks, padding and BOS are impossible."""
        return logits.float().index_select(1, self.target_ids_of).masked_fill(self.missing, IMPOSSIBLE)


def _by_length(lengths: Tensor) -> list[tuple[int, Tensor]]:
    """Returns each different length of lengths [N], and where it occurs."""
    return [(length, (lengths == length).nonzero().squeeze(1)) for length in sorted(set(lengths.tolist()))]


def _narrowed(tensor: Tensor, axis: int | None, length: int) -> Tensor:
    return tensor if axis is None else tensor.narrow(axis, 0, length)


def _widened(tensor: Tensor, axis: int | None, width: int) -> Tensor:
    if axis is None or tensor.shape[axis] == width:
        return tensor
    padding = list(tensor.shape)
    padding[axis] = width - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(padding)], axis)


def traceable_module(
    module: UserModule, source: Vocabulary, target: Vocabulary, *, max_source_tokens: int
) -> TraceableModel:
    """Returns a user's module for tracing.

    Raises:
        UserError: the module does not keep the contract of Seq2SeqModule; the line of the module that breaks it is
            named where there is one.
    """
    if not isinstance(module, Seq2SeqModule) or not isinstance(module, nn.Module):
        missing = [name for name in ("row_state", "encode", "step") if not hasattr(module, name)]
        lacks = f"lacks {', '.join(missing)}" if isinstance(module, nn.Module) else "is no torch.nn.Module"
        inner = getattr(module, "module", None)
        remedy = "give its own module, .module" if isinstance(inner, nn.Module) else "see docs/export-your-own.md"
        raise UserError(f"{type(module).__name__} is no model to export: it {lacks}: {remedy}")
    module.eval()
    state, positional = tried(module, source, target, max_source_tokens)
    wrapped = WrappedModel(module, source, target, state, positional).eval()

    def exact() -> TorchStepper:
        try:
            wide = copy.deepcopy(module).double()
            double = TorchStepper(WrappedModel(wide, source, target, state, positional).eval())
            double.step(double.encode([[UNK_ID]]), np.array([BOS_ID]), num_candidates=1)
        except Exception:  # a module that makes tensors of float32 itself: it has no rounding to compare with
            return TorchStepper(wrapped)
        return double

    encoder, decoder_step = traceable_parts(wrapped, wrapped.state)
    return TraceableModel(
        encoder=encoder,
        decoder_step=decoder_step,
        state=wrapped.state,
        special_ids=special_ids(BOS_ID),
        architecture=getattr(module, "architecture", None)
        or {
            "module": type(module).__qualname__,
            "num_parameters": sum(parameter.numel() for parameter in module.parameters()),
        },
        reference=TorchStepper(wrapped),
        exact_reference=exact,
        splits_gemms=True,
    )
