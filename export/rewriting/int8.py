"""Rewrites fp32 graphs to int8, and int8 graphs with factors of 8 bits to factors of 7 bits.

Both need the graphs alone, not the model: a bundle is rewritten like a run. Every scale is fixed or of one row, and
sums of integers are exact in any order: a source gets the same bits alone and in any batch. See docs/architecture.md.

Halving is for bundles without fp32 graphs, from which int8 graphs of 7 bits can't be made again. The codes are rounded
a second time, to the nearest even number where they are odd; their steps are doubled. Every processor then computes
the products exactly.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from attendant.export.graph import GraphEditor, TracedPair, constant, made_by, operand
from attendant.export.rewriting.bounds import Bounds, step_bounds
from attendant.export.rewriting.products import Activations, replace_products, replace_top
from attendant.export.rewriting.recurrent import replace_recurrent
from attendant.export.rewriting.state import Attention, RowTensor, plan_rows, read_rows, store_rows, write_rows
from attendant.runtime.bundle.graph_content import LARGEST_FACTOR
from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.errors import UserError

UNTOUCHED: Final = "fp32: element by element, with no product to speed up"
FLOAT_SCORES: Final = "fp32: a tanh for every pair of query and position, which integers would not speed up"


def quantize(pair: TracedPair) -> TracedPair:
    """Returns the int8 graphs of fp32 graphs, which don't change."""
    encoder, step = GraphEditor(pair.encoder.model, "int8"), GraphEditor(pair.decoder_step.model, "int8")
    encoder_bounds, bounds = step_bounds(Bounds, encoder.graph, step.graph, pair.state)
    rows, attention = plan_rows(step, bounds, pair.state), Attention(step)

    activations = Activations(encoder, encoder_bounds)
    arithmetic = replace_recurrent(encoder, activations) | replace_products(encoder, activations)
    attention.store(encoder, activations)
    store_rows(encoder, activations, rows)

    activations = Activations(step, bounds)
    replace_top(step)
    attention.replace(activations)
    read_rows(step, activations, rows)
    arithmetic |= replace_products(step, activations)
    write_rows(step, activations, rows)

    arithmetic |= {codes.name: codes.description for codes in attention.stored}
    arithmetic |= {row.tensor.input: "stored as uint8 in fixed steps" for row in rows if row.step is not None}
    if attention.keys is None and "keys" in {tensor.input for tensor in pair.state}:
        arithmetic["attention scores"] = FLOAT_SCORES
    arithmetic["gates, cell states, softmax, log-probabilities"] = UNTOUCHED
    return TracedPair(
        encoder=encoder.finished(),
        decoder_step=step.finished(),
        state=(*_state(pair.state, rows, attention),),
        # Integers are summed exactly: one query gets the same bits as several.
        min_queries=1,
        arithmetic=arithmetic,
    )


def _state(plain: Sequence[StateTensor], rows: Sequence[RowTensor], attention: Attention) -> Iterator[StateTensor]:
    replaced = {row.origin for row in rows}
    yield from (row.tensor for row in rows)
    yield from (tensor for tensor in plain if tensor not in replaced)
    names = {tensor.input for tensor in plain}
    for name in (*(codes.name for codes in attention.stored), *attention.scales):
        if name not in names:
            yield StateTensor(input=name, output=None, scope="source")


HALVED: Final = (
    f"halved from 8 bits to codes of at most {LARGEST_FACTOR}, rounded a second time: there were no fp32 graphs to "
    "quantize again"
)
NOT_OURS: Final = "its int8 graphs are not as an export writes them, so their codes can't be halved: export its run"

LSTM_FACTORS: Final = ((1, 8), (2, 10))
"""The places of DynamicQuantizeLSTM's matrices and of their scales."""


def halve(pair: TracedPair) -> TracedPair:
    """Returns int8 graphs with all factors halved. The former graphs don't change.

    Raises:
        UserError: they have a product that no export writes.
    """
    encoder, step = (GraphEditor(graph.model, "halved") for graph in (pair.encoder, pair.decoder_step))
    _halve_products(encoder)
    for name in _halve_products(step):
        _halve_stored(encoder, name)
    return TracedPair(
        encoder=encoder.finished(),
        decoder_step=step.finished(),
        state=pair.state,
        min_queries=pair.min_queries,
        arithmetic={**pair.arithmetic, "all factors": HALVED},
    )


def _halve_products(editor: GraphEditor) -> list[str]:
    """Halves a graph's constant factors and doubles the steps of all factors.

    Returns:
        The names of the inputs that are factors: the encoder has to halve them.
    """
    stored: list[str] = []
    for node in list(editor.graph.all_nodes()):
        if node.op_type == "DynamicQuantizeLSTM":
            for factor, scale in LSTM_FACTORS:
                _halve(operand(node, factor))
                _double(editor, node, scale)
        elif node.op_type == "MatMulIntegerToFloat":
            if constant(operand(node, 1)) is None:
                stored.append(_input_of(editor, node))
            else:
                _halve(operand(node, 1))
            _double(editor, node, 3)
        elif node.op_type == "MatMulInteger":
            stored.append(_input_of(editor, node))
            _double_context(editor, node)
    return stored


def _input_of(editor: GraphEditor, node: ir.Node) -> str:
    factor = operand(node, 1)
    if factor not in editor.graph.inputs or factor.name is None:
        raise UserError(NOT_OURS)
    return factor.name


def _halve(factor: ir.Value) -> None:
    codes = constant(factor)
    if codes is None or codes.dtype != np.int8 or len(factor.consumers()) != 1:
        raise UserError(NOT_OURS)
    _set(factor, np.rint(codes / 2).astype(np.int8))


def _double(editor: GraphEditor, node: ir.Node, place: int) -> None:
    """Doubles the steps that a node has as its input at `place`."""
    value = operand(node, place)
    steps = constant(value)
    if steps is None:
        raise UserError(NOT_OURS)
    if steps.ndim:
        _set(value, 2 * steps)
    else:
        # Other nodes may have the same number.
        node.replace_input_with(place, editor.add_constant(2 * steps, "step"))


def _set(value: ir.Value, values: Any) -> None:
    value.const_value = ir.tensor(values, name=value.name)


def _double_context(editor: GraphEditor, node: ir.Node) -> None:
    """Doubles the step of the memory, a constant by which attention's sums are multiplied (state.py)."""
    product = node.outputs[0]
    for operator in ("Cast", "Mul"):
        consumers = list(product.consumers())
        if len(consumers) != 1 or consumers[0].op_type != operator:
            raise UserError(NOT_OURS)
        sums, product = product, consumers[0].outputs[0]
    scale = next(value for value in consumers[0].inputs if value is not sums)
    scaling = made_by(scale, "Mul")
    if scaling is None or constant(scaling.inputs[1]) is None:
        raise UserError(NOT_OURS)
    _double(editor, scaling, 1)


def _halve_stored(encoder: GraphEditor, name: str) -> None:
    """Halves the codes of an encoder's output where they are made, unless another output has the same codes."""
    value: ir.Value | None = encoder.output(name)
    while (node := made_by(value, "Transpose", "Identity")) is not None:
        value = node.inputs[0]
    if made_by(value, "Clip") is not None:
        return
    made = made_by(value, "QuantizeLinear")
    if value is None or made is None or (step := constant(made.inputs[1])) is None:
        raise UserError(NOT_OURS)
    doubled = encoder.add("QuantizeLinear", [made.inputs[0], encoder.add_constant(2 * step, "step"), made.inputs[2]])
    ends = [encoder.add_constant(np.int8(end), "end") for end in (-LARGEST_FACTOR, LARGEST_FACTOR)]
    encoder.replace(value, encoder.add("Clip", [doubled, *ends]))
