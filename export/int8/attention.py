"""Attention over a memory of bytes.

Shapes: B sources, M queries of each, S source positions, A key size, C context size (runtime/stepper.py).

Memory and keys are most of what a request keeps, and what a step reads of it. As codes they take a fourth. Scores are
products of integers, and so are contexts, whose weights are taken in steps of a 255th of the row's largest. Scores that
are no products (additive, concat) keep keys and arithmetic in fp32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from export.int8.activations import LARGEST_CODE, MAX_FIXED_BOUND, Activations
from export.int8.graph import CONTRIBUTED, GraphEditor, attribute

WEIGHT_STEP: Final = 1 / 255

SCALE_SUFFIX: Final = "_scale"
"""Of the state tensor [B, S] beside codes that have a scale per position."""


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """A source tensor of the state as the encoder stores it.

    Attributes:
        name: of the tensor, codes uint8 [B, S, K].
        step: of all codes.
        scale: the name of a tensor [B, S] by which each position's steps are multiplied on top; None: there is none.
    """

    name: str
    step: float
    scale: str | None

    @property
    def description(self) -> str:
        return f"stored as uint8 {'in fixed steps' if self.scale is None else 'with a scale per position'}"


def find_attention(editor: GraphEditor) -> list[str]:
    """The state tensors of a step graph whose products become integers; none where the model has no attention."""
    contexts, scores = _contexts(editor), _scores(editor)
    names = [] if contexts is None else [contexts.input[1]]
    return list(dict.fromkeys([*names, *([] if scores is None else [scores.input[0]])]))


def replace_attention(editor: GraphEditor, activations: Activations, stored: Mapping[str, StoredCodes]) -> None:
    """Puts integers in the place of attention's products; the tensors of `stored` become inputs of codes."""
    scores, contexts = _scores(editor), _contexts(editor)
    if scores is not None:
        _replace_scores(editor, activations, scores, stored[scores.input[0]])
    if contexts is not None:
        _replace_contexts(editor, activations, contexts, stored[contexts.input[1]])
    for codes in stored.values():
        editor.set_input(codes.name, TensorProto.UINT8)
        if codes.scale is not None:
            editor.add_input(codes.scale, TensorProto.FLOAT, ("B", "S"))


def _contexts(editor: GraphEditor) -> onnx.NodeProto | None:
    """Weights [B, M, S] times memory [B, S, C]."""
    return _product(editor, 1, "Softmax")


def _scores(editor: GraphEditor) -> onnx.NodeProto | None:
    """Keys [B, S, A] times queries [B, A, M]; None where the score is no product."""
    return _product(editor, 0, "Transpose")


def _product(editor: GraphEditor, place: int, operator: str) -> onnx.NodeProto | None:
    """The one product of an input of the graph, at this place, with what `operator` makes."""
    given = {value.name for value in editor.graph.input}
    found = [
        node
        for node in editor.nodes
        if node.op_type == "MatMul"
        and node.input[place] in given
        and editor.made_by(node.input[1 - place], operator) is not None
    ]
    assert len(found) <= 1, "a step attends once"
    return found[0] if found else None


def _replace_scores(editor: GraphEditor, activations: Activations, node: onnx.NodeProto, keys: StoredCodes) -> None:
    transposed = editor.made_by(node.input[1], "Transpose")
    assert transposed is not None and attribute(transposed, "perm") == [0, 2, 1]
    grid = transposed.input[0]
    bound = activations.bound(grid)
    nothing = editor.add_constant(np.int8(0), "nothing")
    scale = None
    if bound is not None and bound.max() <= MAX_FIXED_BOUND:
        step = float(bound.max()) / LARGEST_CODE
        queries = editor.add("QuantizeLinear", [grid, activations.number(step), nothing])
    else:
        step = 1.0
        scale = activations.row_scale(grid)
        queries = editor.add("QuantizeLinear", [editor.add("Div", [grid, scale]), activations.number(1.0), nothing])
    inputs = [keys.name, editor.add("Transpose", [queries], perm=[0, 2, 1])]
    scales = [activations.number(keys.step), activations.number(step)]
    scores = editor.add("MatMulIntegerToFloat", [*inputs, *scales, activations.zero], domain=CONTRIBUTED)
    if keys.scale is not None:
        scores = editor.add("Mul", [scores, editor.add("Unsqueeze", [keys.scale, editor.integers(-1)])])
    if scale is not None:
        scores = editor.add("Mul", [scores, editor.add("Transpose", [scale], perm=[0, 2, 1])])
    editor.replace(node.output[0], scores)


def _replace_contexts(editor: GraphEditor, activations: Activations, node: onnx.NodeProto, memory: StoredCodes) -> None:
    weights = node.input[0]
    if memory.scale is not None:
        weights = editor.add("Mul", [weights, editor.add("Unsqueeze", [memory.scale, editor.integers(1)])])
    largest = editor.add("ReduceMax", [weights, editor.integers(-1)])
    shares = editor.add("Div", [weights, largest])
    none = editor.add_constant(np.uint8(0), "none")
    codes = editor.add("QuantizeLinear", [shares, activations.number(WEIGHT_STEP), none])
    inputs = [codes, memory.name, activations.number(WEIGHT_STEP), activations.number(memory.step)]
    contexts = editor.add("MatMulIntegerToFloat", [*inputs, none, activations.zero], domain=CONTRIBUTED)
    editor.replace(node.output[0], editor.add("Mul", [contexts, largest]))
