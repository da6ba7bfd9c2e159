"""The output layer over each source's list of symbols.

Shapes: B sources, R rows, M queries per source, H inputs, V target vocabulary, L symbols of a list, U symbols of the
union of all lists, K candidates.

The matrix is multiplied once with all rows, but only with the columns of the union. Its columns stand as rows [V, H] of
bytes, so that taking them is copying memory, and they are the product's left side: ONNX Runtime's fast kernel takes
unsigned times signed codes, and these are the side that nothing has to be rearranged for. What follows (bans,
log-softmax, top) is the plain graph's, over [R, L] in the place of [R, V].
"""

from typing import Final

import numpy as np
import onnx
from onnx import helper

from export.int8.activations import ZERO, Activations, Codes
from export.int8.graph import CONTRIBUTED, GraphEditor
from export.int8.products import Product, find_product, quantized
from runtime import graph_io

DESCRIPTION: Final = "over the {} symbols of the source's list"


def replace_output(editor: GraphEditor, activations: Activations, size: int) -> dict[str, str]:
    """Lets a step look at lists of `size` symbols. Before the products are replaced, and instead of `replace_top`.

    Returns:
        For the output layer's matrix, how its product is computed.
    """
    (normalization,) = [node for node in editor.nodes if node.op_type == "LogSoftmax"]
    (top,) = [node for node in editor.nodes if node.op_type == "TopK"]
    product = _output_layer(editor, normalization.input[0])
    _declare(editor, size)
    codes = activations.of(product.inputs)
    logits = _union_logits(editor, activations, product, codes)
    row_sources = _row_sources(editor)
    places = editor.add("Gather", [graph_io.SHORTLIST_PLACES, row_sources], axis=0)
    editor.replace(product.output, editor.add("GatherElements", [logits, places], axis=1))
    values, chosen = editor.add_many("TopK", [normalization.output[0], top.input[1]], 2)
    _replace_forced(editor, logits, normalization.input[0], values, chosen)
    editor.replace(top.output[0], values)
    editor.replace(top.output[1], _symbols(editor, chosen, row_sources, size))
    scale = "in fixed steps" if codes.row_scale is None else "with a scale per row"
    how = f"int8 {list(product.matrix.shape)} with a scale per column, {DESCRIPTION.format(size)}; inputs int8 {scale}"
    return {product.name: how}


def _output_layer(editor: GraphEditor, logits: str) -> Product:
    """The product that the logits come from, bans aside."""
    value = logits
    while (node := editor.producer(value)) is not None and node.op_type != "Gemm":
        value = node.input[0]
    product = find_product(editor, node)
    assert product is not None and product.bias is not None, "the output layer is a product with a bias"
    return product


def _declare(editor: GraphEditor, size: int) -> None:
    """The inputs of a shortlist, in the place of forced and banned ids."""
    for spec in graph_io.shortlist_inputs(size):
        editor.add_input(spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape)
    for ids, places in (
        (graph_io.FORCED_IDS, graph_io.FORCED_PLACES),
        (graph_io.BANNED_IDS, graph_io.BANNED_PLACES),
    ):
        editor.replace(ids, places)
        editor.drop_input(ids)


def _union_logits(editor: GraphEditor, activations: Activations, product: Product, codes: Codes) -> str:
    """[R, U]: to the bit what the product of all columns gives."""
    weights, scales = quantized(product.matrix.astype(np.float64) * codes.steps[:, None])
    assert product.bias is not None
    tables = {
        "codes": (weights.T.astype(np.int16) + ZERO).astype(np.uint8),
        "scales": scales[:, None],
        "bias": product.bias.astype(np.float32)[:, None],
    }
    taken = {
        name: editor.add(
            "Gather", [editor.add_constant(table, f"{product.name}.{name}"), graph_io.SHORTLIST_UNION], axis=0
        )
        for name, table in tables.items()
    }
    one = activations.number(1.0)
    inputs = editor.add("Transpose", [_signed(editor, activations, codes)], perm=[1, 0])
    factors = [taken["codes"], inputs, one, one, activations.zero]
    logits = editor.add("MatMulIntegerToFloat", factors, domain=CONTRIBUTED)
    logits = editor.add("Mul", [logits, taken["scales"]])
    if codes.row_scale is not None:
        logits = editor.add("Mul", [logits, editor.add("Transpose", [codes.row_scale], perm=[1, 0])])
    return editor.add("Transpose", [editor.add("Add", [logits, taken["bias"]])], perm=[1, 0])


def _signed(editor: GraphEditor, activations: Activations, codes: Codes) -> str:
    """The same codes around 0, in int8 [R, H]."""
    node: onnx.NodeProto | None = editor.made_by(codes.name, "QuantizeLinear")
    if node is not None:
        value, step = node.input[0], node.input[1]
    else:
        value, step = activations.values(codes.name, 1.0), activations.number(1.0)
    return editor.add("QuantizeLinear", [value, step, editor.add_constant(np.int8(0), "nothing")])


def _row_sources(editor: GraphEditor) -> str:
    """[R] the source of each row: its place in the flattened [B, M], without the place among the source's own."""
    width = editor.add("Shape", [graph_io.SOURCE_ROWS], start=1, end=2)
    return editor.add("Div", [graph_io.ROW_SLOTS, width])


def _symbols(editor: GraphEditor, chosen: str, row_sources: str, size: int) -> str:
    """[R, K] the symbols at these places of the rows' lists."""
    first = editor.add("Mul", [row_sources, editor.integers(size)])
    places = editor.add("Add", [editor.add("Unsqueeze", [first, editor.integers(-1)]), chosen])
    symbols = editor.add("Reshape", [graph_io.SHORTLIST_IDS, editor.integers(-1)])
    return editor.add("Gather", [symbols, places], axis=0)


def _replace_forced(editor: GraphEditor, union_logits: str, list_logits: str, values: str, chosen: str) -> None:
    """Of a symbol that is not in the list: its log-probability as if it stood there beside the others.

    x - log(exp(z) + exp(x)) = -softplus(z - x), for its logit x and the list's normalizer z, which is what the logit of
    any symbol has more than its log-probability.
    """
    integers = editor.integers
    start, end, axis = integers(0), integers(1), integers(1)
    best = editor.add("GatherElements", [list_logits, editor.add("Slice", [chosen, start, end, axis])], axis=1)
    normalizer = editor.add("Sub", [best, editor.add("Slice", [values, start, end, axis])])
    nothing = editor.add_constant(np.int64(0), "nothing")
    places = editor.add("Unsqueeze", [editor.add("Max", [graph_io.OUTSIDE_PLACES, nothing]), integers(-1)])
    logits = editor.add("GatherElements", [union_logits, places], axis=1)
    log_probs = editor.add("Neg", [editor.add("Softplus", [editor.add("Sub", [normalizer, logits])])])
    in_list = editor.add("Less", [graph_io.OUTSIDE_PLACES, nothing])
    outside = editor.add("Squeeze", [log_probs, integers(-1)])
    both = editor.add("Where", [in_list, graph_io.FORCED_LOG_PROBS, outside])
    editor.set_output(graph_io.FORCED_LOG_PROBS, both, onnx.TensorProto.FLOAT)
