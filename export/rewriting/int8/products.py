"""Products with the model's matrices, in integers.

Shapes: K inputs, N outputs.

y = x W + b becomes (codes of x) times (codes of W) in int32, and one multiplication per element. Integers are summed
exactly, so a row gets the same bits in whatever order a kernel sums and beside whatever rows. W has one scale per
output column; the steps of x are folded into W first, so that parts of x with different steps make one product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from attendant.export.rewriting.graph import GraphEditor, constant, made_by, operand
from attendant.export.rewriting.int8.activations import Activations, Codes

LARGEST_WEIGHT: Final = 63
"""7 bits. A pair of products with activations of up to 255 then fits 16 signed bits, 2 * 255 * 63 < 32,768, so that
kernels are exact on processors without VNNI, too (runtime/bundle/graph_content.py proves it of a finished graph)."""

Matrix = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the plain graph.

    Attributes:
        name: the matrix's; where constants were folded into it, the output's.
        inputs: the activation [..., K].
        matrix: [K, N] float32.
        bias: [N] float32, or None.
        output: [..., N].
    """

    name: str
    inputs: ir.Value
    matrix: Matrix
    bias: Matrix | None
    output: ir.Value


def quantized(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Returns codes [K, N] int8 of a matrix [K, N], and a scale [N] float32 per column.

    The largest weight of each column becomes +-LARGEST_WEIGHT.
    """
    largest = np.abs(matrix).max(0)
    scales = np.where(largest > 0, largest, 1.0) / LARGEST_WEIGHT
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def multiply(
    editor: GraphEditor, activations: Activations, codes: Codes, matrix: Matrix, bias: Matrix | None, name: str
) -> ir.Value:
    """The value x W + b float32 [..., N] of the codes of x, a matrix [K, N] and a bias [N]."""
    weights, scales = quantized(matrix.astype(np.float64) * codes.steps[:, None])
    added = None if bias is None else editor.add_constant(bias.astype(np.float32), f"{name}.bias")
    factors = (
        codes.value,
        editor.add_constant(weights, f"{name}.codes"),
        activations.number(1.0),
        editor.add_constant(scales, f"{name}.scales"),
        activations.zero,
    )
    if codes.row_scale is None:
        return editor.multiply_integers(*factors, added)
    scaled = editor.add("Mul", [editor.multiply_integers(*factors), codes.row_scale])
    return editor.add("Add", [scaled, added]) if added is not None else scaled


def find_product(node: ir.Node | None) -> Product | None:
    """The node as a product of an activation with a constant matrix; None where it is none."""
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        return None
    matrix = constant(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or constant(node.inputs[0]) is not None:
        return None
    bias = None
    if node.op_type == "Gemm":
        options = node.attributes
        if options.get_int("transA", 0) or options.get_float("alpha", 1.0) != 1 or options.get_float("beta", 1.0) != 1:
            return None
        matrix = matrix.T if options.get_int("transB", 0) else matrix
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = constant(node.inputs[2])
            if bias is None:
                return None
    (output,) = node.outputs
    named, made = operand(node, 1).name or "", output.name or ""
    return Product(named if "." in named else made, operand(node), matrix, bias, output)


def replace_products(editor: GraphEditor, activations: Activations) -> dict[str, str]:
    """Replaces every product by one of integers; two that are added become one where their steps are fixed.

    Returns:
        For each matrix, how its product is computed.
    """
    done: dict[str, str] = {}
    plain = list(editor.graph)
    for node in plain:
        if node.op_type == "Add":
            parts = [part for value in node.inputs if (part := find_product(made_by(value, "Gemm", "MatMul")))]
            if len(parts) == 2 and all(len(part.output.consumers()) == 1 for part in parts):
                codes = [activations.of(part.inputs) for part in parts]
                if all(one.row_scale is None for one in codes):
                    editor.replace(node.outputs[0], _merged(editor, activations, parts, codes))
                    done |= {part.name: _described(part, one) for part, one in zip(parts, codes, strict=True)}
    for node in plain:
        product = find_product(node)
        if product is not None and product.name not in done:
            inputs = activations.of(product.inputs)
            value = multiply(editor, activations, inputs, product.matrix, product.bias, product.name)
            editor.replace(product.output, value)
            done[product.name] = _described(product, inputs)
    return done


def _described(product: Product, inputs: Codes) -> str:
    scale = "in fixed steps" if inputs.row_scale is None else "with a scale per row"
    shape = list(product.matrix.shape)
    return f"int8 {shape} in codes to {LARGEST_WEIGHT} with a scale per column; inputs uint8 {scale}"


def _merged(
    editor: GraphEditor, activations: Activations, parts: Sequence[Product], codes: Sequence[Codes]
) -> ir.Value:
    """X W + h U + b as [x; h] [W; U] + b, for codes x and h of fixed steps."""
    joined = activations.side_by_side(codes)
    biases = [part.bias for part in parts if part.bias is not None]
    bias = np.sum(biases, axis=0) if biases else None
    return multiply(editor, activations, joined, np.concatenate([part.matrix for part in parts]), bias, parts[0].name)
