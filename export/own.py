"""Users' own models: any encoder and decoder step in PyTorch becomes a bundle.

A user's module has two methods, `encode` and `step` (contract.py). `WrappedModel` adds the rest: ids of our
vocabularies become the module's, a source's tensors are gathered for its rows, logits become candidates, and recurrent
layers take the lengths of their sequences, so that padding does not reach them.

torch's exporter writes recurrent layers without lengths, and can't export packed sequences. So a copy of the module is
traced, with other recurrent layers, while functions of this file replace torch's packing.

The export is compared with the module itself, run naively: only sources of one length run together, without padding.
So a result that depends on padding is found, and never published.

Shapes: B sources, R rows, S source positions, V symbols of the module's target vocabulary, M queries per source; I
inputs, H hidden size of a recurrent layer.
"""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn as rnn_utils

from attendant.export.contract import (
    VALID,
    Seq2SeqModule,
    State,
    Trial,
    UserModule,
    check_module,
    shares_sources,
    step_gathered,
    tried,
    widened,
)
from attendant.export.tracing import DecoderStep, Encoder, OnnxRecurrentLayer, TraceableModel
from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID, UNK_ID, special_ids
from attendant.runtime.errors import UserError, reason_of
from attendant.training.data.vocabulary import Vocabulary
from attendant.training.model import STATE_NAMES, CellKind, RecurrentWeights, step_of, weights_of
from attendant.training.model.readout import IMPOSSIBLE
from attendant.training.model.seq2seq import Encoded
from attendant.training.model.stepper import TorchStepper


class Lengths:
    """Lengths [B] of the sequences that are encoded at the moment, and their width S."""

    def __init__(self) -> None:
        self._value: Tensor | None = None
        self._width: Any = None

    @contextlib.contextmanager
    def known(self, lengths: Tensor | None, width: Any) -> Iterator[None]:
        """Sets lengths [B] and width S within a block, and replaces torch's recurrent layers, packing and `data`."""
        self._value, self._width = lengths, width
        with _packing_replaced(), _recurrence_replaced(self), _data_detached():
            try:
                yield
            finally:
                self._value = self._width = None

    def of(self, inputs: Tensor) -> Tensor | None:
        """Returns the lengths if inputs [B, S, I] are as wide as the sources; None for all other sequences."""
        return self._value if self._value is not None and inputs.shape[1] == self._width else None


@dataclass(frozen=True)
class _Packed:
    """Replaces a PackedSequence, which can't be exported: padded data [B, S, I] and lengths [B]."""

    padded: Tensor
    lengths: Tensor


def _pack(
    input: Tensor,  # noqa: A002
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> _Packed:
    return _Packed(input if batch_first else input.transpose(0, 1), torch.as_tensor(lengths))


def _unpack(
    sequence: _Packed, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    padded = sequence.padded
    if padding_value != 0.0:
        valid = torch.arange(padded.shape[1]) < sequence.lengths.unsqueeze(1)
        padded = padded.masked_fill(~valid.unsqueeze(-1), padding_value)
    return padded if batch_first else padded.transpose(0, 1), sequence.lengths


_REPLACED: Final = {id(rnn_utils.pack_padded_sequence): _pack, id(rnn_utils.pad_packed_sequence): _unpack}
"""By the id of torch's function: all values of all modules are looked up, and many can't be hashed."""


@contextlib.contextmanager
def _packing_replaced() -> Iterator[None]:
    """Replaces torch's packing in every module that has imported it, under any name."""
    places = [
        (namespace, name, value)
        for module in list(sys.modules.values())
        if (namespace := getattr(module, "__dict__", None)) is not None and namespace is not globals()
        for name, value in list(namespace.items())
        if id(value) in _REPLACED
    ]
    for namespace, name, value in places:
        namespace[name] = _REPLACED[id(value)]
    try:
        yield
    finally:
        for namespace, name, value in places:
            namespace[name] = value


@contextlib.contextmanager
def _data_detached() -> Iterator[None]:
    """Replaces a tensor's `data` by `detach()`: torch.export takes `data` for a constant of the example's size."""
    tensor: Any = torch.Tensor
    tensor.data = property(tensor.detach, tensor.data.__set__)
    try:
        yield
    finally:
        del tensor.data


@contextlib.contextmanager
def _attributes_restored(module: nn.Module) -> Iterator[None]:
    """Restores the attributes of a module's parts after a block: torch.export refuses tensors that stay there."""
    kept = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes in kept:
            vars(part).clear()
            vars(part).update(attributes)


CELLS: Final[Mapping[str, CellKind]] = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn"}
"""torch's name of a layer's mode -> our cell."""

ONNX_LAYERS: Final = "attendant_onnx_layers"
"""The attribute of a recurrent layer that has its OnnxRecurrentLayers, one for each of its layers."""


@contextlib.contextmanager
def _recurrence_replaced(lengths: Lengths) -> Iterator[None]:
    """Replaces the forward of nn.LSTM, nn.GRU and nn.RNN. Their attributes, hooks and subclasses stay as they are."""

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:  # noqa: A002
            if not hasattr(self, ONNX_LAYERS):  # a layer of another module, in another thread
                return original(self, input, hx)
            return _run_recurrent(self, lengths, input, hx)

        return forward

    classes: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    originals = [each.forward for each in classes]
    for each, original in zip(classes, originals, strict=True):
        each.forward = replacing(original)
    try:
        yield
    finally:
        for each, original in zip(classes, originals, strict=True):
            each.forward = original


def _run_recurrent(rnn: nn.RNNBase, known: Lengths, inputs: Any, hx: Any) -> tuple[Any, Any]:
    """Runs a recurrent layer of a module that is traced; the arguments and results are those of torch's `forward`."""
    cell, num_directions = CELLS[rnn.mode], 2 if rnn.bidirectional else 1
    is_packed = isinstance(inputs, _Packed)
    padded = inputs.padded if is_packed else inputs if rnn.batch_first else inputs.transpose(0, 1)
    lengths = inputs.lengths if is_packed else known.of(padded)
    initial = None if hx is None else list(hx) if cell == "lstm" else [hx]
    finals: list[tuple[Tensor, ...]] = []
    for number, layer in enumerate(cast(Sequence[OnnxRecurrentLayer], getattr(rnn, ONNX_LAYERS))):
        span = slice(number * num_directions, (number + 1) * num_directions)
        own = None if initial is None else [part[span] for part in initial]
        if not is_packed and padded.shape[1] == 1 and num_directions == 1:
            padded, last = _one_step(weights_of(rnn, number), cell, padded, own)
        elif own is not None or lengths is None:
            padded, last = layer.run(padded, lengths, own)
        else:
            # The form of our own encoders' layers, which int8 can rewrite.
            padded, parts = layer(padded, lengths)
            last = tuple(part.unflatten(1, (num_directions, rnn.hidden_size)).transpose(0, 1) for part in parts)
        finals.append(last)
    joined = tuple(torch.cat(parts) for parts in zip(*finals, strict=True))
    output: Any = (
        _Packed(padded, inputs.lengths) if is_packed else padded if rnn.batch_first else padded.transpose(0, 1)
    )
    return output, joined if cell == "lstm" else joined[0]


def _one_step(
    weights: RecurrentWeights, cell: CellKind, inputs: Tensor, initial: Sequence[Tensor] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs one position [B, 1, I] as plain products, which int8 can rewrite."""
    zero = inputs.new_zeros(inputs.shape[0], weights.of_hidden.shape[1])
    state = tuple(part[0] for part in initial) if initial else (zero,) * len(STATE_NAMES[cell])
    new = step_of(weights, cell, inputs[:, 0], state)
    return new[0][:, None], tuple(part[None] for part in new)


def copied(module: nn.Module) -> nn.Module:
    """Returns a copy of the module in evaluation mode. Raises UserError: it can't be copied."""
    try:
        return copy.deepcopy(module).eval()
    except Exception as error:  # attributes of the module may raise anything
        raise UserError(
            f"{type(module).__name__} can't be copied, as the export must: {reason_of(error)}; keep on it only modules "
            "of Python, parameters, buffers and plain values, no generators, files or tensors that were computed"
        ) from None


def prepared(module: nn.Module) -> nn.Module:
    """Returns a copy of the module for tracing, whose recurrent layers have `ONNX_LAYERS`. Raises UserError: it has a
    recurrent layer that can't be exported.
    """
    traced = copied(module).requires_grad_(False)
    for name, child in list(traced.named_modules()):
        if isinstance(child, nn.RNNBase):
            if getattr(child, "proj_size", 0) or child.mode not in CELLS:
                raise UserError(
                    f"{name} ({type(child).__name__}): proj_size and nonlinearity='relu' can't be exported: use a "
                    "linear layer after it, or tanh"
                )
            num_directions = 2 if child.bidirectional else 1
            weights = [weights_of(child, number) for number in range(child.num_layers * num_directions)]
            layers = (
                OnnxRecurrentLayer(CELLS[child.mode], weights[first : first + num_directions])
                for first in range(0, len(weights), num_directions)
            )
            child.add_module(ONNX_LAYERS, nn.ModuleList(layers))
    return traced


class WrappedModel(nn.Module):
    """A user's module with the interface of our models, so that tracing and the reference treat both alike.

    While it is traced, a copy with other recurrent layers runs on padded batches. Otherwise the module itself runs,
    naively: sources of one length at a time, without padding.
    """

    source_ids_of: Tensor
    target_ids_of: Tensor
    missing: Tensor

    def __init__(self, module: UserModule, source: Vocabulary, target: Vocabulary, trial: Trial) -> None:
        super().__init__()
        self.start_id = BOS_ID
        self.target_vocabulary_size = len(target.module_ids)
        self.state, self.positional, self.on_padding = trial.state, trial.positional, trial.on_padding
        self.has_bans = trial.has_bans
        self.row_names = [tensor.input for tensor in trial.state if tensor.scope == "row"]
        self.has_sources = any(tensor.scope == "source" for tensor in trial.state)
        # Not a submodule: only the copy that is traced has parameters here.
        self._naive = (module,)
        self._lengths = Lengths()
        self.traced = prepared(cast(nn.Module, module))

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
        """Encodes sources; see Seq2Seq.encode."""
        own = self.source_ids_of[source_ids]
        if torch.compiler.is_exporting():
            with self._tracing(source_lengths, own.shape[1]):
                tensors = dict(cast(Seq2SeqModule, self.traced).encode(own, source_lengths))
        else:
            tensors = self._encoded_unpadded(own, source_lengths)
        if self.has_sources:
            tensors[VALID] = torch.arange(own.shape[1], device=own.device) < source_lengths.unsqueeze(1)
        rows = {name: tensors[name] for name in self.row_names}
        return Encoded(rows, {name: tensor for name, tensor in tensors.items() if name not in rows})

    @contextlib.contextmanager
    def _tracing(self, lengths: Tensor | None, width: Any) -> Iterator[None]:
        """Prepares the copy for a call within a trace."""
        with self._lengths.known(lengths, width), _attributes_restored(self.traced):
            yield

    def _encoded_unpadded(self, source_ids: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        (module,) = self._naive
        tensors: dict[str, Tensor] = {}
        for length, places in _by_length(lengths):
            state = module.encode(source_ids[places, :length], lengths[places])
            for name, tensor in state.items():
                wide = widened(tensor, self.positional.get(name), source_ids.shape[1])
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
        """Steps rows; see Seq2Seq.step."""
        is_traced = torch.compiler.is_exporting()
        module = cast(UserModule, self.traced) if is_traced else self._naive[0]
        own = self.target_ids_of[previous_ids]
        if not self.has_sources:
            with self._tracing(None, None) if is_traced else contextlib.nullcontext():
                logits, rows, _ = step_gathered(module, own, row_tensors, {})
            return self._ordered(logits), dict(rows), None
        assert source_rows is not None
        assert row_slots is not None
        sources = {name: tensor for name, tensor in source_tensors.items() if name != VALID}
        valid_sources, row_sources = source_tensors[VALID], row_slots // source_rows.shape[1]
        valid = valid_sources[row_sources]
        if not is_traced:
            logits, rows, weights = self._stepped_unpadded(own, row_tensors, sources, row_sources, valid_sources)
        else:
            padded = {name: self._with_padding(name, tensor, valid_sources) for name, tensor in sources.items()}
            is_shared = shares_sources(module)
            arguments: tuple[Any, ...] = (padded, source_rows, row_slots)
            if not is_shared:
                arguments = ({name: tensor[row_sources] for name, tensor in padded.items()},)
            with self._tracing((valid_sources if is_shared else valid).sum(1), valid.shape[1]):
                logits, rows, weights = cast(Any, module).step(own, dict(row_tensors), *arguments)
        weights = valid.float() * 0.0 if weights is None else weights.float() * valid
        return self._ordered(logits), dict(rows), weights

    def _with_padding(self, name: str, tensor: Tensor, valid: Tensor) -> Tensor:
        """Returns a source's tensor with the module's own value, such as a mask's -1e9, where `valid` [B, S] is false.

        Steppers put zeros there.
        """
        if name not in self.on_padding:
            return tensor
        axis = self.positional[name]
        shape = [valid.shape[0], *(valid.shape[1] if place == axis else 1 for place in range(1, tensor.dim()))]
        mask = valid.reshape(shape)
        if tensor.dtype == torch.bool:  # of which onnxruntime has no Where
            return tensor | ~mask
        return torch.where(mask, tensor, torch.tensor(self.on_padding[name], dtype=tensor.dtype))

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
                put(f"row {name}", places, widened(tensor, self.positional.get(name), valid.shape[1]))
            if weights is not None:
                put("attention", places, widened(weights, 1, valid.shape[1]))
        new = {name: stepped[f"row {name}"] for name in row_tensors}
        return stepped["logits"], new, stepped.get("attention")

    def _ordered(self, logits: Tensor) -> Tensor:
        """Returns logits [R, symbols of the bundle]; symbols that the module lacks, padding and BOS are impossible."""
        ordered = logits.float().index_select(1, self.target_ids_of)
        if self.has_bans:  # a log-probability of -inf can't be compared
            ordered = ordered.clamp(min=IMPOSSIBLE)
        return ordered.masked_fill(self.missing, IMPOSSIBLE)


def _by_length(lengths: Tensor) -> list[tuple[int, Tensor]]:
    """Returns each distinct length of lengths [N], with its places."""
    return [(length, (lengths == length).nonzero().squeeze(1)) for length in sorted(set(lengths.tolist()))]


def _narrowed(tensor: Tensor, axis: int | None, length: int) -> Tensor:
    return tensor if axis is None else tensor.narrow(axis, 0, length)


def traceable_module(
    module: UserModule, source: Vocabulary, target: Vocabulary, *, max_positions: int, max_target_tokens: int
) -> TraceableModel:
    """Returns a user's module for tracing.

    Args:
        max_positions: of a source, with BOS and EOS.
        max_target_tokens: limit of a request.

    Raises:
        UserError: the module breaks the contract of Seq2SeqModule; the message names the module's own line, if there
            is one.
    """
    if isinstance(module, type):
        raise UserError(f"module is the class {module.__name__}: give an object of it, {module.__name__}(...)")
    if not isinstance(module, Seq2SeqModule) or not isinstance(module, nn.Module):
        missing = [name for name in ("row_state", "encode", "step") if not hasattr(module, name)]
        lacks = f"lacks {', '.join(missing)}" if isinstance(module, nn.Module) else "is no torch.nn.Module"
        inner = getattr(module, "module", None)
        remedy = "give its own module, .module" if isinstance(inner, nn.Module) else "see docs/export-your-own.md"
        raise UserError(f"{type(module).__name__} is no model to export: it {lacks}: {remedy}")
    check_module(module)
    # The user may train the module further.
    own = copied(module)
    module = cast(UserModule, own)
    trial = tried(module, source, target, max_positions=max_positions, max_target_tokens=max_target_tokens)
    wrapped = WrappedModel(module, source, target, trial).eval()

    def exact() -> TorchStepper:
        try:
            wide = cast(UserModule, copied(own).double())
            double = TorchStepper(WrappedModel(wide, source, target, trial).eval())
            double.step(double.encode([[UNK_ID]]), np.array([BOS_ID]), num_candidates=1)
        except Exception:  # a module that makes tensors of float32 itself: it has no rounding to compare with
            return TorchStepper(wrapped)
        return double

    return TraceableModel(
        encoder=Encoder(wrapped, wrapped.state),
        decoder_step=DecoderStep(wrapped, wrapped.state),
        state=wrapped.state,
        special_ids=special_ids(BOS_ID),
        # Only of GraphModule: a user's module may have any attributes.
        architecture=getattr(module, "graph_architecture", None)
        or {
            "module": type(module).__qualname__,
            "num_parameters": sum(parameter.numel() for parameter in own.parameters()),
        },
        reference=TorchStepper(wrapped),
        exact_reference=exact,
        splits_gemms=True,
        max_positions=max_positions,
        encode_alone=trial.encode_alone,
    )
