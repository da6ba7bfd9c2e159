"""Recurrent layers of users' modules, while these are traced: the same calls and weights, with lengths.

torch's exporter writes recurrent layers without the lengths of their sequences, so padding would reach valid positions,
and it can't export packed sequences. So layers are replaced in a copy of the module, and torch's packing by a stand-in.

Shapes: B sequences, S positions, I inputs, H hidden size.
"""

import contextlib
import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn as rnn_utils

from attendant.export.tracing import OnnxRecurrentLayer
from attendant.runtime.errors import UserError
from attendant.training.model import STATE_NAMES, CellKind, step_of, weights_of


class Lengths:
    """Lengths [B] of the sequences that are encoded at the moment, and their width S."""

    def __init__(self) -> None:
        self._value: Tensor | None = None
        self._width: Any = None

    @contextlib.contextmanager
    def known(self, lengths: Tensor, width: Any) -> Iterator[None]:
        self._value, self._width = lengths, width
        with _packing_replaced():
            try:
                yield
            finally:
                self._value = self._width = None

    def of(self, inputs: Tensor) -> Tensor | None:
        """Returns the lengths if inputs [B, S, I] are as wide as the sources; None for all other sequences."""
        return self._value if self._value is not None and inputs.shape[1] == self._width else None


@dataclass(frozen=True)
class _Packed:
    """Stands in for a PackedSequence, which can't be exported: padded data [B, S, I] and lengths [B]."""

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


_REPLACED: Final = {rnn_utils.pack_padded_sequence: _pack, rnn_utils.pad_packed_sequence: _unpack}


@contextlib.contextmanager
def _packing_replaced() -> Iterator[None]:
    """Replaces torch's packing, by whatever name a module has imported it."""
    places = [
        (namespace, name, value)
        for module in list(sys.modules.values())
        if (namespace := getattr(module, "__dict__", None)) is not None and namespace is not globals()
        for name, value in list(namespace.items())
        if inspect.isfunction(value) and value in _REPLACED  # type: ignore[comparison-overlap]
    ]
    for namespace, name, value in places:
        namespace[name] = _REPLACED[value]  # type: ignore[index]
    try:
        yield
    finally:
        for namespace, name, value in places:
            namespace[name] = value


CELLS: Final[Mapping[str, CellKind]] = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn"}
"""By torch's name of a layer's mode."""


class _LengthAwareRecurrence(nn.Module):
    """Replaces nn.LSTM, nn.GRU or nn.RNN while a module is traced: the same call and weights."""

    def __init__(self, rnn: nn.RNNBase, lengths: Lengths) -> None:
        super().__init__()
        self.cell: CellKind = CELLS[rnn.mode]
        self.batch_first, self.num_directions = rnn.batch_first, 2 if rnn.bidirectional else 1
        self.hidden_size = rnn.hidden_size
        self._lengths = lengths
        # Of each layer, direction by direction.
        self._weights = [weights_of(rnn, number) for number in range(rnn.num_layers * self.num_directions)]
        self.layers = nn.ModuleList(
            OnnxRecurrentLayer(self.cell, self._weights[first : first + self.num_directions])
            for first in range(0, len(self._weights), self.num_directions)
        )

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002
        is_packed = isinstance(input, _Packed)
        padded = input.padded if is_packed else input if self.batch_first else input.transpose(0, 1)
        lengths = input.lengths if is_packed else self._lengths.of(padded)
        initial = None if hx is None else list(hx) if self.cell == "lstm" else [hx]
        finals: list[tuple[Tensor, ...]] = []
        for number, layer in enumerate(cast(Sequence[OnnxRecurrentLayer], self.layers)):
            span = slice(number * self.num_directions, (number + 1) * self.num_directions)
            own = None if initial is None else [part[span] for part in initial]
            if not is_packed and padded.shape[1] == 1 and self.num_directions == 1:
                padded, last = self._one_step(padded, own, number)
            else:
                padded, last = self._run(layer, padded, lengths, own)
            finals.append(last)
        joined = tuple(torch.cat(parts) for parts in zip(*finals, strict=True))
        output: Any = (
            _Packed(padded, input.lengths) if is_packed else padded if self.batch_first else padded.transpose(0, 1)
        )
        return output, joined if self.cell == "lstm" else joined[0]

    def _run(
        self, layer: OnnxRecurrentLayer, inputs: Tensor, lengths: Tensor | None, initial: Sequence[Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if initial is not None or lengths is None:
            return layer.run(inputs, lengths, initial)
        # The form of our own encoders' layers, which int8 can rewrite.
        outputs, finals = layer(inputs, lengths)
        shape = (self.num_directions, self.hidden_size)
        return outputs, tuple(final.unflatten(1, shape).transpose(0, 1) for final in finals)

    def _one_step(
        self, inputs: Tensor, initial: Sequence[Tensor] | None, number: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Runs one position [B, 1, I] as plain products, which int8 can rewrite."""
        zero = inputs.new_zeros(inputs.shape[0], self.hidden_size)
        state = tuple(part[0] for part in initial) if initial else (zero,) * len(STATE_NAMES[self.cell])
        new = step_of(self._weights[number], self.cell, inputs[:, 0], state)
        return new[0][:, None], tuple(part[None] for part in new)


def with_lengths(module: nn.Module, lengths: Lengths) -> nn.Module:
    """Returns a copy of the module whose recurrent layers take the lengths of their sequences."""
    traced = copy.deepcopy(module).eval().requires_grad_(False)
    for parent in list(traced.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.RNNBase):
                if getattr(child, "proj_size", 0) or child.mode not in CELLS:
                    raise UserError(
                        f"{name} ({type(child).__name__}): proj_size and nonlinearity='relu' can't be exported: use a "
                        "linear layer behind it, or tanh"
                    )
                setattr(parent, name, _LengthAwareRecurrence(child, lengths))
    return traced
