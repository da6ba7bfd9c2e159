"""A user's two ONNX graphs as a module in PyTorch, with the contract of Seq2SeqModule (contract.py).

Outside of a trace, the module runs the graphs as they are by onnxruntime; an export is compared with that. In a
trace, each graph is one node at first, and tracing.py puts the graph in its place.

Shapes: B sources, R rows, S source positions, V symbols.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx
import torch
from torch import Tensor, nn

from attendant.export.contract import RESERVED
from attendant.export.tracing import InlinedGraph
from attendant.export.user_graphs.graph import masked, softmax_inputs, with_outputs
from attendant.export.user_graphs.layout import (
    NARROW,
    POSITION,
    ROW,
    EncoderPlaces,
    Placed,
    Places,
    StepPlaces,
    arranged,
    example_sizes,
    first_state,
    measured_axes,
    run_graph,
    standard,
    step_example,
    zeros,
)
from attendant.export.user_graphs.spec import EncoderTable, ScoresAre, StateTable, StepTable
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import PlainSession

SOURCE_MASK: Final = "source_mask"
"""A source tensor that the module adds, [B, S] bool: True at positions of symbols."""

LEAST_PROBABILITY: Final = 1.2e-38
"""The smallest normal float32: a probability below it has no logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Two graphs whose description is complete."""

    encoder: EncoderPlaces
    step: StepPlaces
    state: tuple[StateTable, ...]
    scores: Placed
    scores_are: ScoresAre
    attention: Placed | None

    def tables(self) -> tuple[EncoderTable, StepTable, tuple[StateTable, ...]]:
        """Returns the tables that describe the graphs."""
        encoder, step = self.encoder, self.step
        time_major = [axis for axis in encoder.source_ids.axes if axis in (ROW, POSITION)] == [POSITION, ROW]
        return (
            EncoderTable(
                source_ids=encoder.source_ids.name,
                **_padding_fields(encoder),
                zeros=tuple(placed.name for placed in encoder.zeros),
                time_major=True if time_major else None,
            ),
            StepTable(
                previous_ids=step.previous_ids.name,
                scores=self.scores.name,
                scores_are=self.scores_are,
                attention=self.attention.name if self.attention else None,
                **_padding_fields(step),
            ),
            self.state,
        )

    def lines(self) -> list[str]:
        """Returns a line for each tensor, and for each reason why the graphs will be slower than they could be."""
        encoder, step = self.encoder, self.step
        taken = [encoder.source_ids, encoder.source_lengths, encoder.source_mask, *encoder.zeros]
        lines = [f"{encoder.graph.file} takes {', '.join(str(placed) for placed in taken if placed is not None)}"]
        taken = [step.previous_ids, step.source_lengths, step.source_mask]
        lines.append(f"{step.graph.file} takes {', '.join(str(placed) for placed in taken if placed is not None)}")
        lines.append(f"{step.graph.file} gives {self.scores_are.replace('_', '-')} {self.scores}")
        lines.append(f"attention: {self.attention or 'none'}")
        for tensor in self.state:
            first = "zeros" if tensor.encoder is None else f"the encoder's {tensor.encoder!r}"
            after = f"then the step's {tensor.output!r}" if tensor.output else "which steps leave as it is"
            lines.append(f"state {step.state[tensor.input]}: {first}, {after}")
        if encoder.width is not None:
            lines.append(
                f"{encoder.graph.file} takes {encoder.width} positions: shorter sources are filled with padding"
            )
        for places, what in ((encoder, "sources are encoded"), (step, "rows are stepped")):
            if places.row_by_row:
                lines.append(
                    f"{what} one by one, which is slow: {places.reason}; export it with an axis that is not fixed"
                )
        return lines


def _padding_fields(places: Places) -> dict[str, Any]:
    """Returns the fields of a graph's table that describe its inputs for padding."""
    return {
        "source_lengths": places.source_lengths.name if places.source_lengths else None,
        "source_mask": places.source_mask.name if places.source_mask else None,
        "mask_is_true_on": "padding" if places.masks_padding else "symbols",
    }


class _Call(InlinedGraph):
    """A graph with its inputs and outputs in standard form.

    Attributes:
        exact: it runs in float64.
    """

    def __init__(
        self, label: str, places: EncoderPlaces | StepPlaces, outputs: Sequence[Placed], masks: Any = None
    ) -> None:
        """Stores the graph. `masks` returns the arguments of `masked`, for a step that lacks an input for a mask."""
        super().__init__(label, row_by_row=places.row_by_row)
        self.graph, self.inputs, self.outputs = places.graph, places.input_names, list(outputs)
        self.masks, self.exact = masks, False

    def __deepcopy__(self, memo: Any) -> "_Call":
        return copy.copy(self)

    def forward(self, inputs: Mapping[Placed, Tensor], valid: Tensor) -> dict[str, Tensor]:
        """Returns the outputs by name.

        Args:
            valid: [R, S] bool, True at positions that are not padding; for the sizes, and for `masks`.
        """
        names = [placed.name for placed in self.outputs]
        if not torch.compiler.is_exporting():
            graph = self.graph.in_float64 if self.exact else self.graph
            values: Sequence[Tensor] = run_graph(graph, inputs, names, row_by_row=self.row_by_row, exact=self.exact)
        else:
            tensors = [arranged(value, placed, row_by_row=self.row_by_row) for placed, value in inputs.items()]
            sizes: dict[Any, Any] = {ROW: valid.shape[0], POSITION: valid.shape[1]}
            shapes = [[sizes.get(axis, axis) for axis in self._axes(placed)] for placed in self.outputs]
            dtypes = [getattr(torch, placed.dtype) for placed in self.outputs]
            values = self.node([*tensors, *([] if self.masks is None else [valid])], dtypes, shapes)
        return {
            placed.name: standard(value, placed, row_by_row=self.row_by_row)
            for placed, value in zip(self.outputs, values, strict=True)
        }

    def _axes(self, placed: Placed) -> tuple[str | int, ...]:
        return (ROW, *placed.of_one_row) if self.row_by_row else placed.axes

    def onnx_model(self, opset: int) -> onnx.ModelProto:
        model = self.graph.onnx_model(opset, self.inputs, [placed.name for placed in self.outputs])
        return model if self.masks is None else masked(model, *self.masks(model))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOfGraphs:
    """A tensor that passes between the graphs.

    Attributes:
        name: the bundle's.
        input, output: of the step; a state without output belongs to the source.
        encoder: output of the encoder; None for zeros.
    """

    name: str
    input: Placed
    output: str | None
    encoder: str | None


def _named(graphs: Graphs) -> list[StateOfGraphs]:
    """Returns the state, with names that bundles allow."""
    state: dict[str, StateOfGraphs] = {}
    for tensor in graphs.state:
        name = re.sub(r"[^a-z0-9_]+", "_", tensor.input.lower()).strip("_").removesuffix("_out") or "state"
        name = name if name[0].isalpha() and name not in {*RESERVED, SOURCE_MASK} else f"state_{name}"
        while name in state:
            name += "_"
        placed = graphs.step.state[tensor.input]
        state[name] = StateOfGraphs(name=name, input=placed, output=tensor.output, encoder=tensor.encoder)
    return list(state.values())


class GraphModule(nn.Module):
    """An encoder and a step in ONNX, as Seq2SeqModule."""

    def __init__(self, graphs: Graphs, *, pad_id: int) -> None:
        """Prepares the calls of both graphs.

        Args:
            pad_id: the graphs' id of positions without symbols.
        """
        super().__init__()
        encoder, step, state, attention = graphs.encoder, graphs.step, _named(graphs), graphs.attention
        self.encoder, self.decoder_step, self.state = encoder, step, tuple(state)
        self.row_state: Sequence[str] = tuple(tensor.name for tensor in state if tensor.output is not None)
        self.has_sources = any(tensor.output is None for tensor in state)
        self.scores, self.scores_are = graphs.scores, graphs.scores_are
        self.attention, self.pad_id = attention, pad_id
        used = dict.fromkeys(tensor.encoder for tensor in state if tensor.encoder is not None)
        self.encode_call = _Call("encoder", encoder, [encoder.outputs[name] for name in used])
        states = [
            Placed(tensor.output, tensor.input.dtype, tensor.input.axes)
            for tensor in state
            if tensor.output is not None
        ]
        results = [graphs.scores, *([] if attention is None else [attention]), *states]
        takes_mask = step.source_mask is not None or step.source_lengths is not None
        needs_mask = self.has_sources and not takes_mask and encoder.width is None
        self.step_call = _Call("step", step, results, masks=self._softmaxes if needs_mask else None)

    def double(self) -> "GraphModule":
        """Returns the module in float64, except recurrent layers.

        Raises:
            UserError: onnxruntime can't compute a graph so.
        """
        expected = self._example()
        for call in (self.encode_call, self.step_call):
            call.exact = True
        # The exact scores decide how much of an error is rounding.
        if not torch.allclose(self._example(), expected.double(), rtol=1e-3, atol=1e-3):
            raise UserError(f"{self.decoder_step.graph.file} computes something else in float64")
        return self

    def _example(self) -> Tensor:
        """Returns the scores [2, V] of a first step."""
        tensors = self.encode(torch.ones(2, NARROW, dtype=torch.int64), torch.full((2,), NARROW))
        rows = {name: tensors[name] for name in self.row_state}
        return self.step(torch.ones(2, dtype=torch.int64), rows, tensors)[0]

    @property
    def architecture(self) -> Mapping[str, Any]:
        """The manifest's description of the model."""
        graphs = self.encoder.graph, self.decoder_step.graph
        return {"graphs": [graph.file for graph in graphs], "num_parameters": sum(g.num_parameters for g in graphs)}

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        """Encodes sources; see Seq2SeqModule."""
        valid = torch.arange(source_ids.shape[1]) < source_lengths.unsqueeze(1)
        ids, known = source_ids, valid
        if self.encoder.width is not None:
            known = torch.arange(self.encoder.width) < source_lengths.unsqueeze(1)
            ids = torch.where(known, _fitted(source_ids, self.encoder.width), self.pad_id)
        outputs = self.encode_call(self.encoder.inputs(ids, known), known)
        tensors = {
            tensor.name: zeros(tensor.input, known)
            if tensor.encoder is None
            else first_state(outputs[tensor.encoder], self.encoder.outputs[tensor.encoder], tensor.input)
            for tensor in self.state
        }
        return {**tensors, SOURCE_MASK: valid} if self.has_sources else tensors

    def step(
        self, previous_ids: Tensor, row_state: Mapping[str, Tensor], source_state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Steps rows; see Seq2SeqModule."""
        tensors = {**row_state, **source_state}
        valid = tensors[SOURCE_MASK] if self.has_sources else previous_ids.unsqueeze(1) == previous_ids.unsqueeze(1)
        known = valid if self.encoder.width is None else _fitted(valid, self.encoder.width, beyond=False)
        state = {tensor.input.name: tensors[tensor.name] for tensor in self.state}
        outputs = self.step_call(self.decoder_step.inputs(previous_ids, state, known), known)
        scores = outputs[self.scores.name].flatten(1)
        if self.scores_are == "probabilities":
            scores = torch.log(scores.clamp(min=LEAST_PROBABILITY))
        rows = {tensor.name: outputs[tensor.output] for tensor in self.state if tensor.output is not None}
        return scores, rows, self._weights(outputs, valid)

    def _weights(self, outputs: Mapping[str, Tensor], valid: Tensor) -> Tensor | None:
        """Returns attention weights [R, S], the mean of heads."""
        if self.attention is None or not self.has_sources:
            return None
        position = self.encoder.width or POSITION
        axes = [axis for axis in self.attention.axes if axis != ROW]
        weights = outputs[self.attention.name].movedim(axes.index(position) + 1, 1)
        weights = weights.flatten(2).mean(2) if weights.dim() > 2 else weights
        return weights if self.encoder.width is None else _fitted(weights, valid.shape[1])

    def _softmaxes(self, model: onnx.ModelProto) -> tuple[dict[str, tuple[int | None, int]], int]:
        """Returns the values that a step normalizes over positions, with their axes, and the rank of a mask.

        Raises:
            UserError: the step has no such softmax, and so no place for a mask.
        """
        places, step = {}, self.decoder_step
        names = softmax_inputs(model)
        session = PlainSession(step.graph.file, with_outputs(model, names).SerializeToString())
        encoders = {tensor.input.name: tensor.encoder for tensor in self.state}
        sizes = example_sizes(self.encoder.width)
        runs = [
            run_graph(session, step_example(step, self.encoder, encoders, *size), names, row_by_row=step.row_by_row)
            for size in (sizes if names else ())
        ]
        for name, *values in zip(names, *runs, strict=True):
            axes = measured_axes(values, sizes, row_by_row=step.row_by_row)
            if axes.count(POSITION) == 1:
                places[name] = axes.index(ROW) if ROW in axes else None, axes.index(POSITION)
        if not places and any(POSITION in tensor.input.axes for tensor in self.state if tensor.output is None):
            tensor = next(tensor for tensor in self.state if POSITION in tensor.input.axes)
            raise UserError(
                f"{step.graph.file}: reads {tensor.input} of the source, and has neither an input for a mask nor a "
                "Softmax over positions where one could be put: give the step an input [rows, positions] by which it "
                "leaves out padding, and name it as step.source_mask"
            )
        return places, 1 if step.row_by_row else 2


def _fitted(values: Tensor, width: int, beyond: bool = True) -> Tensor:
    """Returns values [R, S] at `width` positions: further ones repeat the last, or are false unless `beyond`."""
    places = torch.arange(width)
    last = torch.arange(values.shape[1])[-1:]
    fitted = values.index_select(1, torch.minimum(places, last))
    return fitted if beyond else fitted & (places <= last)
