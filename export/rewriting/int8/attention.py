"""Attention over a memory of bytes.

Shapes: B sources, M queries of each, S source positions, A key size, C context size (runtime/stepper.py).

Memory and keys are most of what a request keeps, and what a step reads of it. As codes they take a fourth. Scores are
products of integers, and so are contexts, whose weights are taken in steps of a 255th of the row's largest. Scores that
are no products (additive, concat) keep keys and arithmetic in fp32.

Both products have a row per query, as most sources have one: ONNX Runtime packs the larger factor of a product before
it multiplies, which for a single row takes longer than the product. So keys are stored with their positions last, and
contexts leave the zero point and the scale out of their product: then a single row is multiplied without packing.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from attendant.export.rewriting.graph import CONTRIBUTED, GraphEditor, attribute
from attendant.export.rewriting.int8.activations import Activations, Codes

WEIGHT_STEP: Final = 1 / 255

SCALE_SUFFIX: Final = "_scale"
"""Of the state tensor [B, S] beside codes that have a scale per position."""

TURNED_SUFFIX: Final = "_turned"
"""Of keys that are the memory itself, beside it."""


@dataclass(frozen=True, slots=True)
class Attended:
    """What a step's products read of the state: names of source tensors of the plain graphs, [B, S, ...].

    Attributes:
        memory: of contexts; None: there is no attention.
        keys: of scores, possibly the memory; None: scores are no product.
    """

    memory: str | None
    keys: str | None

    @property
    def stored_keys(self) -> str:
        """What the keys are called as they are stored."""
        assert self.keys is not None
        return f"{self.keys}{TURNED_SUFFIX}" if self.keys == self.memory else self.keys


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """A source tensor of the state as the encoder stores it: codes int8, with the zero at 0.

    Attributes:
        name: of the tensor: memory [B, S, C], or keys [B, A, S].
        step: of all codes.
        scale: the name of a tensor [B, S] by which each position's steps are multiplied on top; None: there is none.
    """

    name: str
    step: float
    scale: str | None

    @property
    def description(self) -> str:
        return f"stored as int8 {'in fixed steps' if self.scale is None else 'with a scale per position'}"


@dataclass(frozen=True, slots=True)
class StoredAttention:
    """What `store_attention` has made of it."""

    memory: StoredCodes | None
    keys: StoredCodes | None

    @property
    def all(self) -> list[StoredCodes]:
        return [codes for codes in (self.memory, self.keys) if codes is not None]

    @property
    def scales(self) -> list[str]:
        """Each once: of keys that are the memory there is one."""
        return list(dict.fromkeys(codes.scale for codes in self.all if codes.scale is not None))


def find_attention(step: GraphEditor) -> Attended:
    """What becomes integers of a step graph's attention."""
    contexts, scores = _contexts(step), _scores(step)
    return Attended(
        memory=None if contexts is None else contexts.input[1], keys=None if scores is None else scores.input[0]
    )


def store_attention(encoder: GraphEditor, activations: Activations, attended: Attended) -> StoredAttention:
    """Lets the encoder give out codes of what is attended to."""
    values = dict.fromkeys(name for name in (attended.memory, attended.keys) if name is not None)
    codes = {name: activations.signed(name) for name in values}
    scales = {name: _store_scale(encoder, name, codes[name]) for name in values}
    memory = keys = None
    if attended.keys is not None:
        name, size = attended.stored_keys, encoder.size(attended.keys)
        turned = encoder.add("Transpose", [codes[attended.keys].name], perm=[0, 2, 1])
        if name == attended.keys:
            encoder.set_output(name, turned, TensorProto.INT8, ("B", size, "S"))
        else:
            encoder.add_output(name, turned, TensorProto.INT8, ("B", size, "S"))
        keys = StoredCodes(name, float(codes[attended.keys].steps[0]), scales[attended.keys])
    if attended.memory is not None:
        encoder.set_output(attended.memory, codes[attended.memory].name, TensorProto.INT8)
        memory = StoredCodes(attended.memory, float(codes[attended.memory].steps[0]), scales[attended.memory])
    return StoredAttention(memory, keys)


def _store_scale(encoder: GraphEditor, name: str, codes: Codes) -> str | None:
    if codes.row_scale is None:
        return None
    scale = f"{name}{SCALE_SUFFIX}"
    values = encoder.add("Squeeze", [codes.row_scale, encoder.integers(-1)])
    encoder.add_output(scale, values, TensorProto.FLOAT, ("B", "S"))
    return scale


def replace_attention(step: GraphEditor, activations: Activations, stored: StoredAttention) -> None:
    """Puts integers in the place of attention's products; what is stored becomes inputs of codes."""
    scores, contexts = _scores(step), _contexts(step)
    if scores is not None and stored.keys is not None:
        shape = "B", step.size(scores.input[0]), "S"
        if stored.keys.name == scores.input[0]:
            step.set_input(stored.keys.name, TensorProto.INT8, shape)
        else:
            step.add_input(stored.keys.name, TensorProto.INT8, shape)
        _replace_scores(step, activations, scores, stored.keys)
    if contexts is not None and stored.memory is not None:
        step.set_input(stored.memory.name, TensorProto.INT8)
        _replace_contexts(step, activations, contexts, stored.memory)
    for scale in stored.scales:
        step.add_input(scale, TensorProto.FLOAT, ("B", "S"))


def _contexts(step: GraphEditor) -> onnx.NodeProto | None:
    """Weights [B, M, S] times memory [B, S, C]."""
    return _product(step, 1, "Softmax")


def _scores(step: GraphEditor) -> onnx.NodeProto | None:
    """Keys [B, S, A] times queries [B, A, M]; None where the score is no product."""
    return _product(step, 0, "Transpose")


def _product(step: GraphEditor, place: int, operator: str) -> onnx.NodeProto | None:
    """The one product of an input of the graph, at this place, with what `operator` makes."""
    given = {value.name for value in step.graph.input}
    found = [
        node
        for node in step.nodes
        if node.op_type == "MatMul"
        and node.input[place] in given
        and step.made_by(node.input[1 - place], operator) is not None
    ]
    assert len(found) <= 1, "a step attends once"
    return found[0] if found else None


def _replace_scores(step: GraphEditor, activations: Activations, node: onnx.NodeProto, keys: StoredCodes) -> None:
    transposed = step.made_by(node.input[1], "Transpose")
    assert transposed is not None and attribute(transposed, "perm") == [0, 2, 1]
    queries = activations.uniform(transposed.input[0])
    scales = [activations.number(float(queries.steps[0])), activations.number(keys.step)]
    inputs = [queries.name, keys.name, *scales, activations.zero]
    scores = step.add("MatMulIntegerToFloat", inputs, domain=CONTRIBUTED)
    if keys.scale is not None:
        scores = step.add("Mul", [scores, step.add("Unsqueeze", [keys.scale, step.integers(1)])])
    if queries.row_scale is not None:
        scores = step.add("Mul", [scores, queries.row_scale])
    # [B, M, S], where the plain graph has [B, S, M] and turns it.
    for reader in step.readers(node.output[0]):
        assert reader.op_type == "Transpose" and attribute(reader, "perm") == [0, 2, 1]
        step.replace(reader.output[0], scores)


def _replace_contexts(step: GraphEditor, activations: Activations, node: onnx.NodeProto, memory: StoredCodes) -> None:
    weights = node.input[0]
    if memory.scale is not None:
        weights = step.add("Mul", [weights, step.add("Unsqueeze", [memory.scale, step.integers(1)])])
    largest = step.add("ReduceMax", [weights, step.integers(-1)])
    none = step.add_constant(np.uint8(0), "none")
    shares = step.add("Div", [weights, largest])
    codes = step.add("QuantizeLinear", [shares, activations.number(WEIGHT_STEP), none])
    sums = step.add("Cast", [step.add("MatMulInteger", [codes, memory.name])], to=TensorProto.FLOAT)
    scale = step.add("Mul", [largest, activations.number(WEIGHT_STEP * memory.step)])
    step.replace(node.output[0], step.add("Mul", [sums, scale]))
