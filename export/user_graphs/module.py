"""A user's two ONNX graphs as a module in PyTorch, with the contract of Seq2SeqModule (contract.py).

Outside of a trace, the module runs the graphs as they are by onnxruntime; an export is compared with that. In a
trace, each graph is one node at first, and tracing.py puts the graph in its place.

Shapes: B sources, R rows, S source positions, V symbols.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    StepPlaces,
    arranged,
    example_sizes,
    first_state,
    measured_axes,
    run_graph,
    standard,
    step_example,
)
from attendant.export.user_graphs.spec import EncoderTable, ScoresAre, StateTable, StepTable
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import PlainSession
from attendant.runtime.stepper import SOURCE_MASK

LEAST_PROBABILITY: Final = 1.2e-38  # The smallest normal float32: a probability below it has no logarithm.


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
        ids, attention = self.encoder.source_ids, self.attention
        time_major = [axis for axis in ids.axes if axis in (ROW, POSITION)] == [POSITION, ROW]
        results = {"scores": self.scores.name, "scores_are": self.scores_are}
        return (
            self.encoder.table.model_copy(update={"time_major": True if time_major else None}),
            self.step.table.model_copy(update={**results, "attention": attention.name if attention else None}),
            self.state,
        )

    def lines(self) -> list[str]:
        """Returns a line for each tensor, and for each reason why the graphs will be slower than they could be."""
        encoder, step = self.encoder, self.step
        lines = []
        for places, taken in ((encoder, (encoder.source_ids, *encoder.zeros)), (step, (step.previous_ids,))):
            mask = f"{places.source_mask} true on {places.table.mask_is_true_on}" if places.source_mask else None
            texts = filter(None, (*taken, places.source_lengths, mask))
            lines.append(f"{places.graph.file} takes {', '.join(map(str, texts))}")
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
        for places, entries in ((encoder, "sources are encoded"), (step, "rows are stepped")):
            if places.row_by_row:
                lines.append(
                    f"{entries} one by one, which is slow: export {places.graph.file} with an axis that is not fixed, "
                    "and without squeeze()"
                )
        return lines


class _Call(InlinedGraph):
    """A graph with its inputs and outputs in standard form; it runs in float64 if `exact`."""

    def __init__(
        self, label: str, places: EncoderPlaces | StepPlaces, outputs: Sequence[Placed], masks: Any = None
    ) -> None:
        """Stores the graph. `masks` returns the arguments of `masked`, for a step that lacks an input for a mask."""
        super().__init__(label, row_by_row=places.row_by_row)
        self.graph, self.inputs, self.outputs = places.graph, places.takes, list(outputs)
        self.masks, self.exact = masks, False

    def __deepcopy__(self, memo: Any) -> "_Call":
        return copy.copy(self)

    def forward(self, inputs: Mapping[Placed, Tensor], valid: Tensor) -> dict[str, Tensor]:
        """Returns the outputs by name; `valid` [R, S] is true at positions that are not padding."""
        names = [placed.name for placed in self.outputs]
        if not torch.compiler.is_exporting():
            session = self.graph.in_float64 if self.exact else self.graph.session
            values: Sequence[Tensor] = run_graph(session, inputs, names, row_by_row=self.row_by_row, exact=self.exact)
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


def _names(state: Sequence[StateTable]) -> dict[str, str]:
    """Returns input of the step -> a name of the tensor that bundles allow."""
    names: dict[str, str] = {}
    for tensor in state:
        name = re.sub(r"[^a-z0-9_]+", "_", tensor.input.lower()).strip("_").removesuffix("_out") or "state"
        name = name if name[0].isalpha() and name not in {*RESERVED, SOURCE_MASK} else f"state_{name}"
        while name in names.values():
            name += "_"
        names[tensor.input] = name
    return names


class GraphModule(nn.Module):
    """An encoder and a step in ONNX, as Seq2SeqModule."""

    def __init__(self, graphs: Graphs, *, pad_id: int) -> None:
        """Prepares the calls of both graphs; `pad_id` is their id of positions without symbols."""
        super().__init__()
        encoder, step, names = graphs.encoder, graphs.step, _names(graphs.state)
        self.graphs, self.pad_id, self.names = graphs, pad_id, names
        self.outputs = {tensor.input: tensor.output for tensor in graphs.state if tensor.output is not None}
        self.row_state: Sequence[str] = tuple(names[name] for name in self.outputs)
        self.has_sources = len(self.outputs) < len(names)
        self.sources = {tensor.input: tensor.encoder for tensor in graphs.state}
        used = dict.fromkeys(output for output in self.sources.values() if output is not None)
        self.encode_call = _Call("encoder", encoder, [encoder.outputs[name] for name in used])
        states = [replace(step.state[name], name=output) for name, output in self.outputs.items()]
        results = [graphs.scores, *([] if graphs.attention is None else [graphs.attention]), *states]
        takes_mask = step.source_mask is not None or step.source_lengths is not None
        needs_mask = self.has_sources and not takes_mask and encoder.width is None
        self.step_call = _Call("step", step, results, masks=self._softmaxes if needs_mask else None)

    def double(self) -> "GraphModule":
        """Returns the module in float64, except recurrent layers. Raises UserError: onnxruntime can't compute a graph
        so.
        """
        expected = self._example()
        for call in (self.encode_call, self.step_call):
            call.exact = True
        # The exact scores decide how much of an error is rounding.
        if not torch.allclose(self._example(), expected.double(), rtol=1e-3, atol=1e-3):
            raise UserError(f"{self.graphs.step.graph.file} computes something else in float64")
        return self

    def _example(self) -> Tensor:
        """Returns the scores [2, V] of a first step."""
        tensors = self.encode(torch.ones(2, NARROW, dtype=torch.int64), torch.full((2,), NARROW))
        rows = {name: tensors[name] for name in self.row_state}
        return self.step(torch.ones(2, dtype=torch.int64), rows, tensors)[0]

    @property
    def graph_architecture(self) -> Mapping[str, Any]:
        """The manifest's description of the model."""
        graphs = self.graphs.encoder.graph, self.graphs.step.graph
        return {
            "graphs": [graph.path.name for graph in graphs],
            "num_parameters": sum(g.num_parameters for g in graphs),
        }

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        """Encodes sources; see Seq2SeqModule."""
        valid = torch.arange(source_ids.shape[1]) < source_lengths.unsqueeze(1)
        ids, known, encoder = source_ids, valid, self.graphs.encoder
        if encoder.width is not None:
            known = torch.arange(encoder.width) < source_lengths.unsqueeze(1)
            ids = torch.where(known, _fitted(source_ids, encoder.width), self.pad_id)
        outputs = self.encode_call(encoder.inputs(ids, known), known)
        state = first_state(encoder, outputs, self.sources, self.graphs.step.state, known)
        tensors = {self.names[name]: tensor for name, tensor in state.items()}
        return {**tensors, SOURCE_MASK: valid} if self.has_sources else tensors

    def step(
        self, previous_ids: Tensor, row_state: Mapping[str, Tensor], source_state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Steps rows; see Seq2SeqModule."""
        tensors = {**row_state, **source_state}
        valid = tensors[SOURCE_MASK] if self.has_sources else previous_ids.unsqueeze(1) == previous_ids.unsqueeze(1)
        width = self.graphs.encoder.width
        known = valid if width is None else _fitted(valid, width, beyond=False)
        state = {name: tensors[own] for name, own in self.names.items()}
        outputs = self.step_call(self.graphs.step.inputs(previous_ids, state, known), known)
        scores = outputs[self.graphs.scores.name].flatten(1)
        if self.graphs.scores_are == "probabilities":
            scores = torch.log(scores.clamp(min=LEAST_PROBABILITY))
        rows = {self.names[name]: outputs[output] for name, output in self.outputs.items()}
        return scores, rows, self._weights(outputs, valid)

    def _weights(self, outputs: Mapping[str, Tensor], valid: Tensor) -> Tensor | None:
        """Returns attention weights [R, S], the mean of heads."""
        attention, width = self.graphs.attention, self.graphs.encoder.width
        if attention is None or not self.has_sources:
            return None
        axes = [axis for axis in attention.axes if axis != ROW]
        weights = outputs[attention.name].movedim(axes.index(width or POSITION) + 1, 1)
        weights = weights.flatten(2).mean(2) if weights.dim() > 2 else weights
        return weights if width is None else _fitted(weights, valid.shape[1])

    def _softmaxes(self, model: onnx.ModelProto) -> tuple[dict[str, tuple[int | None, int]], int]:
        """Returns the values that a step normalizes over positions, with their axes, and the rank of a mask. Raises
        UserError: the step has no such softmax, and so no place for a mask.
        """
        places, step, encoder = {}, self.graphs.step, self.graphs.encoder
        names = softmax_inputs(model)
        session = PlainSession(step.graph.file, with_outputs(model, names).SerializeToString())
        sizes = example_sizes(encoder.width)
        runs = [
            run_graph(session, step_example(step, encoder, self.sources, *size), names, row_by_row=step.row_by_row)
            for size in (sizes if names else ())
        ]
        for name, *values in zip(names, *runs, strict=True):
            axes = measured_axes(values, sizes, row_by_row=step.row_by_row)
            if axes.count(POSITION) == 1:
                places[name] = axes.index(ROW) if ROW in axes else None, axes.index(POSITION)
        positional = [tensor for name, tensor in step.state.items() if POSITION in tensor.axes]
        if not places and any(tensor.name not in self.outputs for tensor in positional):
            raise UserError(
                f"{step.graph.file}: reads {positional[0]} of the source, and has neither an input for a mask nor a "
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
