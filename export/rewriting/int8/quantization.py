"""From the fp32 graphs to int8: what is rewritten, and in which order.

It needs the graphs alone, not the model: a bundle is quantized like a run. Every scale is fixed or of one row, and sums
of integers are exact in any order: a source gets the same bits alone and in any company.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import helper

from attendant.export.rewriting.bounds import Bound, Bounds
from attendant.export.rewriting.graph import CONTRIBUTED, GraphEditor
from attendant.export.rewriting.int8.activations import Activations
from attendant.export.rewriting.int8.attention import (
    Attended,
    StoredAttention,
    find_attention,
    replace_attention,
    store_attention,
)
from attendant.export.rewriting.int8.candidates import replace_top
from attendant.export.rewriting.int8.products import replace_products
from attendant.export.rewriting.int8.recurrent import replace_recurrent
from attendant.export.rewriting.int8.state import RowTensor, plan_rows, read_rows, store_rows, write_rows
from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.runtime.bundle.manifest import StateTensor, TensorSpec

UNTOUCHED: Final = {
    "gates, cell states, softmax, log-probabilities": "fp32: element by element, with no product to speed up",
}

FLOAT_SCORES: Final = {
    "attention scores": "fp32: a tanh for every pair of query and position, which integers would not speed up",
}


@dataclass(frozen=True, slots=True)
class QuantizedPair:
    """The graphs, and for each matrix, tensor or operation how it is computed or stored."""

    graphs: TracedPair
    arithmetic: Mapping[str, str]


def quantize(pair: TracedPair) -> QuantizedPair:
    """The int8 graphs of fp32 graphs, which stay as they are."""
    encoder, step = _copy(pair.encoder.model), _copy(pair.decoder_step.model)
    plain_step = GraphEditor(pair.decoder_step.model)
    encoder_bounds = Bounds(GraphEditor(pair.encoder.model))
    step_bounds = _step_bounds(plain_step, encoder_bounds, pair.state)
    rows = plan_rows(plain_step, step_bounds, pair.state)
    stored, arithmetic = _quantize_encoder(encoder, encoder_bounds, find_attention(plain_step), rows)
    arithmetic |= _quantize_step(step, step_bounds, stored, rows)
    arithmetic |= {codes.name: codes.description for codes in stored.all}
    arithmetic |= {row.tensor.input: "stored as uint8 in fixed steps" for row in rows if row.step is not None}
    if stored.keys is None and "keys" in {tensor.input for tensor in pair.state}:
        arithmetic |= FLOAT_SCORES
    graphs = TracedPair(
        encoder=_traced(encoder, pair.encoder.opset),
        decoder_step=_traced(step, pair.decoder_step.opset),
        state=(*_state(pair.state, rows, stored),),
        # Integers are summed exactly: one query gets the same bits as several.
        min_queries=1,
    )
    return QuantizedPair(graphs, arithmetic | UNTOUCHED)


def _quantize_encoder(
    model: onnx.ModelProto, bounds: Bounds, attended: Attended, rows: Sequence[RowTensor]
) -> tuple[StoredAttention, dict[str, str]]:
    """Rewrites the encoder, out of which what is attended to comes as codes."""
    editor = GraphEditor(model)
    activations = Activations(editor, bounds)
    arithmetic = replace_recurrent(editor, activations) | replace_products(editor, activations)
    stored = store_attention(editor, activations, attended)
    store_rows(editor, activations, rows)
    editor.finish()
    return stored, arithmetic


def _quantize_step(
    model: onnx.ModelProto,
    bounds: Bounds,
    stored: StoredAttention,
    rows: Sequence[RowTensor],
) -> dict[str, str]:
    editor = GraphEditor(model)
    activations = Activations(editor, bounds)
    replace_top(editor)
    replace_attention(editor, activations, stored)
    read_rows(editor, activations, rows)
    arithmetic = replace_products(editor, activations)
    write_rows(editor, activations, rows)
    editor.finish()
    return arithmetic


def _state(plain: Sequence[StateTensor], rows: Sequence[RowTensor], stored: StoredAttention) -> Iterator[StateTensor]:
    replaced = {row.origin for row in rows}
    yield from (row.tensor for row in rows)
    yield from (tensor for tensor in plain if tensor not in replaced)
    given = {tensor.input for tensor in plain}
    for name in (*(codes.name for codes in stored.all), *stored.scales):
        if name not in given:
            yield StateTensor(input=name, output=None, scope="source")


def _step_bounds(editor: GraphEditor, encoder: Bounds, state: Sequence[StateTensor]) -> Bounds:
    """The bounds of a step, given that its state came from the encoder or from any number of steps before."""
    given: dict[str, Bound] = {
        tensor.input: bound for tensor in state if (bound := encoder.of(tensor.input)) is not None
    }
    while True:
        bounds, following = Bounds(editor, given), dict(given)
        for tensor in state:
            if tensor.output is not None and tensor.input in given:
                after = bounds.of(tensor.output)
                if after is None or after.max() > max(given[tensor.input].max(), 1.0):
                    # It grows from step to step.
                    del following[tensor.input]
                else:
                    following[tensor.input] = np.maximum(given[tensor.input].max(), after.max())
        if following == given:
            return bounds
        given = following


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.opset_import.append(helper.make_opsetid(CONTRIBUTED, 1))
    return copied


def _traced(model: onnx.ModelProto, opset: int) -> TracedGraph:
    inputs, outputs = (tuple(map(_spec, values)) for values in (model.graph.input, model.graph.output))
    return TracedGraph(model=model, opset=opset, inputs=inputs, outputs=outputs)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    return TensorSpec(
        name=value.name,
        dtype=str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)),
        shape=tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim),
    )
