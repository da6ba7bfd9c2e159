"""Watches a model's steps in PyTorch, for `attendant.inspect`.

Shapes: R rows, M queries, S source positions, H hidden size (decoder.py).
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attendant.runtime.inspection import Record
from attendant.training.kernels.cells import CellKind, CellState, RecurrentWeights, products_of, weights_of
from attendant.training.model.decoder import DecoderCell
from attendant.training.model.seq2seq import Seq2Seq


def watched(model: Seq2Seq, record: Record) -> Seq2Seq:
    """Returns a copy of a model that writes the quantities of its first row's steps into the record."""
    watched_model = copy.deepcopy(model).eval()
    decoder = watched_model.decoder
    decoder.cells = nn.ModuleList(_WatchedCell(cell, record) for cell in decoder.cells)  # type: ignore[assignment]

    def on_score(module: nn.Module, inputs: tuple[Tensor, ...], scores: Tensor) -> None:
        query, keys = inputs[:2]
        record.update(query=query[0, 0], keys=keys[0], scores=scores[0, 0])

    def on_attention(module: nn.Module, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        context, weights = outputs[:2]
        record.update(memory=inputs[1]["memory"][0], context=context[0, 0], weights=weights[0, 0])

    def on_gate(module: nn.Module, inputs: tuple[Tensor, ...], gate: Tensor) -> None:
        record["p_gen"] = gate[0, 0].sigmoid()

    if decoder.attention is not None:
        decoder.attention.score.register_forward_hook(on_score)
        decoder.attention.register_forward_hook(on_attention)
    if decoder.copying is not None:
        decoder.copying.gate.register_forward_hook(on_gate)
    return watched_model


class _WatchedCell(nn.Module):
    """A cell that records its gates and its new state."""

    def __init__(self, cell: DecoderCell, record: Record) -> None:
        super().__init__()
        self.cell = cell
        self._record = record

    def step(self, inputs: Tensor, state: CellState) -> CellState:
        """Runs a step as DecoderCell does."""
        stepped = self.cell.step(inputs, state)
        parts = dict(zip(("hidden", "cell"), stepped, strict=False))
        gates = gates_of(self.cell.kind, weights_of(self.cell.rnn), inputs, state)
        for name, value in {**parts, **{f"gates.{name}": gate for name, gate in gates.items()}}.items():
            layers = self._record.get(name, value[:0])
            self._record[name] = torch.cat([layers, value[:1]])
        return stepped


def gates_of(kind: CellKind, weights: RecurrentWeights, inputs: Tensor, state: CellState) -> dict[str, Tensor]:
    """Returns the gates [R, H] of a step by name; see the equations in kernels/cells.py. A tanh RNN has none."""
    projected, recurrent = products_of(weights, inputs, state)
    if kind == "lstm":
        input_gate, forget_gate, candidate, output_gate = (projected + recurrent).chunk(4, -1)
        sigmoids = {"input": input_gate, "forget": forget_gate, "output": output_gate}
        return {name: gate.sigmoid() for name, gate in sigmoids.items()} | {"candidate": candidate.tanh()}
    if kind == "gru":
        of_inputs, of_hidden = projected.chunk(3, -1), recurrent.chunk(3, -1)
        reset, update = ((of_inputs[place] + of_hidden[place]).sigmoid() for place in (0, 1))
        return {"reset": reset, "update": update, "candidate": (of_inputs[2] + reset * of_hidden[2]).tanh()}
    return {}
